"""What tarbench measures, in a process of its own: `python -m tartools.train.bench`.

`forms` has the ways to keep samples, `passes` gives the samples of one to training, and counts and times them, `probes`
measures the bytes alone. Begin reading at `passes.measured`.
"""
