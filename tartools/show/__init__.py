"""Display samples: as text, as pictures on a terminal, as a page of HTML, as statistics.

`samples.kinds` describes payloads in words, and `text` makes lines of that; `sheet` arranges samples on a terminal,
`pager` shows one at a time or a grid, `terminal` says what the terminal can draw, and which keys are pressed; `html` is
the page of `tarshow --html`.
`statreport`, `checkreport` and `benchreport` make facts, lines and `sections`, which are drawn on a terminal or a page.
Begin reading at `text.sample_text`.
"""
