"""Pictures to shards, to a table, to a small network that learns on the CPU; it may be killed at any time.

    python examples/train_shapes.py shapes             # a minute; Ctrl-C or kill it when you like
    python examples/train_shapes.py shapes             # goes on where it was
    python examples/train_shapes.py s3://bucket/shapes # shards, table and checkpoint on a server

It draws circles, squares and triangles, packs them into shards, and trains from their table, each picture once an epoch
in a new random order. Every 10 batches it writes model, optimizer and the place in the epoch to one file. So a run
that was killed goes on from there, and ends with the same weights as one that was not.
"""

import argparse
import io
import os
import random
import signal

import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tartools
import tartools.train

SHAPES = {"circle": 0, "square": 4, "triangle": 3}  # class: corners
SIDE, SIZE = 96, 24  # pixels of a picture, and of what the network sees
BATCH = 32


class Drawings(Dataset):
    """Pictures of shapes, drawn when they are asked for: put your own dataset here, or torchvision's ImageFolder."""

    def __init__(self, count, seed):
        self.count = count
        self.seed = seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        chance = random.Random(self.seed * self.count + index)
        label = index % len(SHAPES)
        dark, light = (tuple(chance.randrange(low, low + 90) for _ in range(3)) for low in (0, 160))
        image = Image.new("RGB", (SIDE, SIDE), dark)
        x, y, radius = chance.uniform(36, 60), chance.uniform(36, 60), chance.uniform(20, 34)
        pen = ImageDraw.Draw(image)
        if corners := [*SHAPES.values()][label]:
            pen.regular_polygon((x, y, radius), corners, rotation=chance.randrange(360), fill=light)
        else:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=light)
        return image, label


def prepared(picture):
    """Return a decoded picture as the network takes it: grey, small, from -1 to 1."""
    grey = picture.mean(0, keepdim=True)[None]
    return nn.functional.interpolate(grey, SIZE, mode="area")[0] * 2 - 1


def network():
    """Return a network of two convolutions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, len(SHAPES))),
    )


def packed(place, name, count, seed):
    """Make shards of *count* pictures, and return their table, as a dataset. What is there already is kept."""
    table = tartools.train.pack(Drawings(count, seed), f"{place}/{name}", max_count=500, encode="jpg", seed=seed)
    return tartools.train.TableDataset(
        table, fields=("jpg", "cls", "__key__"), decode="torchrgb", transform=(prepared, None, None)
    )


def saved(place, state):
    """Write the checkpoint, which replaces the one before when it is complete."""
    with tartools.open(f"{place}/checkpoint.pt", "wb", force=True) as file:
        torch.save(state, file)


def loaded(place):
    """Return the checkpoint, or None if there is none."""
    try:
        with tartools.open(f"{place}/checkpoint.pt") as file:
            return torch.load(io.BytesIO(file.read()), weights_only=True)
    except tartools.errors.StorageError:
        return None


def main():
    """Make the data set, train, and say how good the network is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", help="directory, or URL of a prefix, for shards, tables and the checkpoint")
    parser.add_argument("--pictures", type=int, default=2400)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=10, metavar="BATCHES")
    parser.add_argument("--kill-after", type=int, metavar="BATCHES", help="die after so many batches, to try a restart")
    given = parser.parse_args()
    if "://" not in given.place:
        os.makedirs(given.place, exist_ok=True)
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = packed(given.place, "train", given.pictures, 1)
    order = tartools.train.StatefulSampler(data, seed=7, batch_size=BATCH)
    if (state := loaded(given.place)) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        order.load_state_dict(state["order"])
    loader = DataLoader(data, batch_sampler=order, num_workers=given.workers)
    batches = 0
    for epoch in range(order.state_dict()["epoch"], given.epochs):
        order.set_epoch(epoch)
        for step, (pictures, labels, keys) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            place = order.state_dict(taken=step + 1)
            print(f"epoch {epoch}, sample {place['done']}: {','.join(keys)}: loss {loss.item():.6f}", flush=True)
            batches += 1
            if batches % given.save_every == 0:
                saved(
                    given.place,
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "order": place},
                )
            if batches == given.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
    right = 0
    held_out = packed(given.place, "test", max(len(data) // 4, BATCH), 2)
    with torch.no_grad():
        for pictures, labels, _ in DataLoader(held_out, batch_size=BATCH):
            right += int((model(pictures).argmax(1) == labels).sum())
    weights = sum(value.double().sum().item() for value in model.state_dict().values())
    print(f"of {len(held_out)} pictures that it has not seen, it names {right}; sum of weights {weights:.9f}")


if __name__ == "__main__":
    main()
