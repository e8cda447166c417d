"""Loose objects as datasets: all of them, each once, the bytes that were listed or a failure that names the object."""

from __future__ import annotations

import json
import os
import pickle
import threading
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import tartools.train
from tartools.errors import StorageError
from tartools.storage import listing
from tartools.train import ObjectDataset, ObjectStream, StatefulSampler, list_urls, open_urls
from tests.processes import until
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.tiers import also, by_turns, exhaustive, in_both
from tests.train.conftest import be_rank

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",  # more workers than cores
    "ignore:'set_vital' is deprecated",  # torchdata calls it
)
LISTS = [scheme for scheme in SCHEMES if scheme != "http"]
COUNT = 23


def fill(server: FaultServer, count: int) -> dict[str, bytes]:
    """Put *count* objects, one of them empty, into `d/` of *server*; return them by name."""
    made = {f"d/{n % 7}/ä {n:04d}.bin": b"%d" % n * (n % 50) for n in range(count)}
    server.objects.update(made)
    return made


def named(data: bytes, url: str) -> tuple[str, bytes]:
    """Return both."""
    return url, data


def reversed_or_failing(data: bytes, url: str) -> bytes:
    """Return the bytes backwards, of all but one object."""
    if url.endswith("0005.bin"):
        raise ValueError("no such class")
    return data[::-1]


@pytest.mark.parametrize("scheme", LISTS)
@by_turns("scheme")
def test_all_objects_of_all_pages(scheme: str, server: FaultServer) -> None:
    made = fill(server, 2500)  # pages have 1000
    server.objects.update({"d/": b"", "d/3/": b"", "d/4/": b"kept", "other": b"x"})
    wanted = sorted([*made, "d/4/"], key=str.encode)
    data = ObjectDataset([server.url(scheme, "d/"), server.url(scheme, "d/3")], named)
    assert data.objects[:] == [(server.url(scheme, name), len(server.objects[name])) for name in wanted]
    assert len(data) == len(wanted) and data.objects[-1] == data.objects[len(data) - 1]
    with pytest.raises(IndexError):
        data[len(data)]
    with pytest.raises(StorageError, match=r"://b/nothing: nothing is listed under this"):
        ObjectDataset([server.url(scheme, "d/"), server.url(scheme, "nothing")])
    assert data.__getitems__([7, 2400, 7]) == [data[7], data[2400], data[7]]
    for url, found in data.__getitems__(range(0, len(data), 25)):
        assert found == server.objects[url.removeprefix(f"{scheme}://b/")]
    again = pickle.loads(pickle.dumps(data))
    assert again.objects[:] == data.objects[:] and again[7] == data[7]
    assert len(pickle.dumps(data)) < 32 * len(data)


def test_files_and_web_servers(server: FaultServer, tmp_path: Path) -> None:
    made = fill(server, 60)
    for name, data in made.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    here = ObjectDataset("d", named)
    assert here.objects[:] == [(name, len(made[name])) for name in sorted(made, key=str.encode)]
    assert dict(here.__getitems__(range(60))) == made
    urls = [server.url("http", name) for name in made]
    far = ObjectDataset(reversed(urls), named)
    assert [url for url, _ in far.objects] == sorted(urls)
    assert dict(far.__getitems__(range(60))) == dict(zip(urls, made.values(), strict=True))
    both = ObjectDataset(["d/{0,1}", server.url("s3", "d/2")])
    assert [url[-7:-4] for url, _ in both.objects] == [f"{n:03d}" for part in range(3) for n in range(part, 60, 7)]
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(StorageError, match="link: its size is not known"):
        ObjectDataset(".")


@pytest.mark.parametrize("scheme", ["s3", "path", *also(*(scheme for scheme in SCHEMES if scheme != "s3"))])
def test_what_was_listed_or_a_failure(scheme: str, server: FaultServer, tmp_path: Path) -> None:
    made = {f"x{n}": b"%d" % n * 1000 for n in range(4)} | {"x4": b""}

    def put(name: str, data: bytes | None) -> str:
        if scheme != "path":
            server.objects.pop(name)
            server.objects.update({} if data is None else {name: data})
            return server.url(scheme, name)
        (tmp_path / name).unlink()
        if data is not None:
            (tmp_path / name).write_bytes(data)
            os.utime(name, ns=(0, 1))
        return name

    for name, found in made.items():
        server.objects[name] = found
        (tmp_path / name).write_bytes(found)
    data = ObjectDataset([name if scheme == "path" else server.url(scheme, name) for name in made])
    server.faults = [Fault("x0", "GET", cut=700), Fault("x1", "GET", status=503), Fault("x2", "GET", dropped=True)]
    assert data.__getitems__(range(5)) == [*made.values()]
    for number, other in enumerate([b"#" * 1000, b"1" * 1001, None, b"3" * 999, b"x"]):
        name = put(f"x{number}", other)
        with pytest.raises(StorageError) as failure:
            data[number]
        assert str(failure.value).startswith(f"{name}: ")
        assert any(what in str(failure.value) for what in ("replaced", "deleted", "No such file"))
        with pytest.raises(StorageError, match=name):
            data.__getitems__([number])


def test_what_was_cut_is_not_mixed_with_another_version(server: FaultServer) -> None:
    """Where the server lists generations, and neither sends them nor takes notice of them."""
    server.objects["d/a"] = b"old" * 3000
    data = ObjectDataset(server.url("gs", "d/"))
    without: dict[str, Any] = {"has": "alt=media", "headers": {"x-goog-generation": ""}, "no_match": True}
    server.faults = [Fault("d/a", cut=4000, **without), Fault("d/a", replace=b"new" * 3000, **without)]
    assert data[0] == b"new" * 3000


def test_requests_side_by_side_in_bounded_memory(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.objects.update({f"o{n:03d}": b"%03d" % n * 100 for n in range(200)})
    data = ObjectDataset(server.url("gs", "o"))
    server.requests.clear()
    server.faults = [Fault("o000", silent=True)]
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.extend(data.items(range(200))))
    reading.start()
    until(lambda: len(server.requests) == listing.MAX_OBJECT_REQUESTS)
    assert data[199] == b"199" * 100  # whoever asks after that is answered
    assert sorted(request.path[-3:] for request in server.requests) == [f"{n:03d}" for n in [*range(64), 199]]
    server.release()
    reading.join()
    assert found == [b"%03d" % n * 100 for n in range(200)]
    monkeypatch.setattr(listing, "MAX_REQUESTED_BYTES", 1000)  # three objects
    server.requests.clear()
    some = data.items(range(200))
    assert next(some) == b"000" * 100
    assert data.__getitems__([199, 198]) == [b"199" * 100, b"198" * 100]  # asked for behind those before
    until(lambda: len(server.requests) == 5)  # connections are answered side by side
    assert sorted(request.path[-3:] for request in server.requests) == ["000", "001", "002", "198", "199"]


@pytest.mark.parametrize("scheme", SCHEMES)
@by_turns("scheme")
def test_large_objects_in_ranges(scheme: str, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_WHOLE_OBJECT_BYTES", 1000)
    monkeypatch.setattr(listing, "OBJECT_RANGE_BYTES", 300)
    server.objects.update({name: bytes(range(250)) * 4 * n for n, name in enumerate("xyz")})
    data = ObjectDataset([server.url(scheme, name) for name in "xyz"])
    server.requests.clear()
    last = Fault("z", "GET", start=1800, cut=50)
    server.faults = [Fault("z", "GET", start=0, skip=1, silent=True), Fault("z", "GET", start=900, status=503), last]
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.extend(data.__getitems__(range(3))))
    reading.start()
    until(lambda: last.played == 1)  # all are asked for, though the first does not answer
    server.release()
    reading.join()
    assert found == [server.objects[name] for name in "xyz"]
    starts = sorted(request.start or 0 for request in server.asked("GET", "z"))
    assert starts == [0, 0, 0, 300, 600, 900, 900, 1200, 1500, 1800, 1850]  # the first: is it that version?
    assert len(server.asked("GET", "y")) == 1  # 1,000 bytes are not large
    server.faults = [Fault("z", "GET", start=0, body=server.objects["z"], headers={"Content-Range": ""}, status=200)]
    assert data[2] == server.objects["z"]  # a server without ranges is asked for all, once
    good, look = server.objects["z"], listing.probe
    for other in (good[::-1], None):
        server.faults = []
        server.objects["z"] = good
        again = ObjectDataset(server.url(scheme, "z"))

        def replaced(url: str, other: bytes | None = other) -> object:
            seen = look(url)
            server.objects.pop("z")
            server.objects.update({} if other is None else {"z": other})
            return seen

        monkeypatch.setattr(listing, "probe", replaced)
        with pytest.raises(StorageError, match=r"z: (at byte \d+: )?was (replaced|deleted)"):
            again[0]
        monkeypatch.setattr(listing, "probe", look)
    ranges = listing._threads(
        os.getpid(), listing.MAX_REQUESTS_AT_ONCE
    )  # of an object that failed, some are still asked for:
    listing._threads.cache_clear()  # the server of the next test would get these requests
    ranges.stop()


def test_transforms_that_fail_name_the_object(server: FaultServer) -> None:
    fill(server, 10)
    data = ObjectDataset(server.url("s3", "d/"), reversed_or_failing)
    assert data[0] == server.objects[data.objects[0][0].removeprefix("s3://b/")][::-1]
    loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ValueError, match="no such class") as failure:
        list(loader)
    assert "s3://b/d/5/ä 0005.bin: the transform failed" in str(failure.value)


def loaded(stream: ObjectStream, workers: int, context: str = "fork") -> list[Any]:
    """Return what a loader with so many workers gives."""
    chosen = context if workers else None
    return [tuple(item) for item in DataLoader(stream, None, num_workers=workers, multiprocessing_context=chosen)]


def forget(_: int) -> None:
    del os.environ["RANK"]


@pytest.mark.parametrize("count", [100, *also(5)])
@pytest.mark.parametrize("workers", [0, 1, *also(3)])
def test_stream_covers_exactly(workers: int, count: int, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server, count)
    stream = ObjectStream(server.url("ais", "d/"), named, shuffle=True, seed=3)
    even = ObjectStream(server.url("ais", "d/"), named, drop_last=True)
    every = dict(named(server.objects[url.removeprefix("ais://b/")], url) for url, _ in stream.objects)
    assert len(every) == count
    epochs: list[list[Any]] = []
    shares: list[list[Any]] = []
    for epoch in (1, 0, 1) if workers < 3 else (1,):
        epochs.append([])
        for rank in range(2):
            be_rank(monkeypatch, rank, 2)
            stream.set_epoch(epoch)
            epochs[-1] += loaded(stream, workers)
            shares += [loaded(even, workers)] if len(epochs) == 1 else []
        assert sorted(epochs[-1]) == sorted(every.items())
    assert epochs[0] == epochs[-1] and (len(epochs) == 1 or epochs[0] != epochs[1] or count < 100)
    assert len(shares[0]) == len(shares[1]) > (count - 2 * max(workers, 1)) / 2
    assert len(dict([*shares[0], *shares[1]])) == len([*shares[0], *shares[1]])
    if not workers:  # a worker that is no fork knows the rank of its process
        loader: Any = DataLoader(stream, num_workers=1, multiprocessing_context="forkserver", worker_init_fn=forget)
        stream.set_epoch(2)
        there = [url for (url,), _ in loader]
        stream.set_epoch(2)
        assert there == [url for url, _ in stream] != []


@exhaustive
def test_workers_of_all_kinds(server: FaultServer) -> None:
    made = fill(server, 20)
    data, stream = ObjectDataset(server.url("ais", "d/")), ObjectStream(server.url("ais", "d/"))
    wanted = [made[name] for name in sorted(made, key=str.encode)]
    assert [*stream] == wanted == data.__getitems__(range(20))  # with connections that a fork must not use
    assert list(chain.from_iterable(DataLoader(data, 3, num_workers=2, multiprocessing_context="fork"))) == wanted
    assert list(DataLoader(stream, None, num_workers=1, multiprocessing_context="forkserver")) == wanted
    assert list(chain.from_iterable(DataLoader(data, 3, num_workers=1, multiprocessing_context="spawn"))) == wanted


def test_lister_and_loader(server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tartools.train.objects, "OPEN_BYTES", 1000)
    made = fill(server, 150)
    server.objects.update({"e/large": b"0123456789" * 1000, "e/empty": b""})
    (tmp_path / "file").write_bytes(b"local")
    server.faults = [Fault("e/large", "GET", cut=7), Fault("d/3/ä 0003.bin", "GET", status=503)]
    places = [server.url("s3", "d/"), "file", server.url("gs", "e/"), server.url("http", "e/large")]
    urls = list(list_urls(places))
    wanted = [("s3", name) for name in sorted(made, key=str.encode)]
    wanted += [("gs", "e/empty"), ("gs", "e/large"), ("http", "e/large")]
    assert urls == [server.url(*one) for one in wanted[:150]] + ["file"] + [server.url(*one) for one in wanted[150:]]
    for (url, file), known in zip(open_urls(urls), urls, strict=True):
        with file:
            data = file.read()
            file.seek(1)
            assert file.read() == data[1:]
        name = url.partition("/b/")[2] or url.partition("://b/")[2]
        assert url == known and data == (server.objects[name] if name else b"local")
    with pytest.raises(StorageError, match="s3://b/none: no such object"):
        list(open_urls([server.url("s3", "none")]))


def test_web_servers_are_asked_once(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.objects["a"] = b"bytes of a"
    url = server.url("http", "a")
    data = ObjectDataset(url)
    server.faults = [Fault("a", "GET", status=503)]
    assert data[0] == b"bytes of a"
    assert len(server.asked("GET")) == 2
    there = {"Location": f"{url}?again"}
    server.faults = [Fault("a", "GET", status=302, headers=there, times=2)]
    assert data[0] == b"bytes of a"
    assert server.requests[-1].target == "/b/a?again"
    monkeypatch.setenv("http_proxy", server.base)  # gets the whole URL
    assert data[0] == b"bytes of a"
    assert server.requests[-1].target == url


# ---- stopped and resumed: what comes before and after is the epoch, by a state and by `StatefulSampler` ----


@pytest.fixture
def wanted(server: FaultServer) -> list[str]:
    """Put objects on the server; return their URLs, in order."""
    server.objects.update({f"o{n:02d}": b"%d" % n for n in range(COUNT)})
    return [f"gs://b/o{n:02d}" for n in range(COUNT)]


def stream(**options: Any) -> ObjectStream:
    return ObjectStream("gs://b/o", name_of, **options)


def name_of(data: bytes, url: str) -> str:
    assert data == b"%d" % int(url[-2:])
    return url


@in_both
@pytest.mark.parametrize("shuffle", [False, True])
def test_stream_after_every_item(thorough: bool, shuffle: bool, wanted: list[str]) -> None:
    """Or after some."""
    data = stream(shuffle=shuffle, seed=5)
    data.set_epoch(2)
    whole, following = list(data), list(data)
    assert sorted(whole) == wanted and (whole == wanted) == (not shuffle) == (whole == following)
    for stop in range(COUNT + 1) if thorough else (0, 1, 12, COUNT):
        begun = stream(shuffle=shuffle, seed=5)
        begun.set_epoch(2)
        assert list(islice(DataLoader(begun, None), stop)) == whole[:stop]
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = stream(shuffle=shuffle)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(2)  # as a loop over epochs does
        assert list(DataLoader(resumed, None)) == whole[stop:]
        assert list(resumed) == following  # each iteration is the next epoch
        resumed.load_state_dict(state)
        resumed.set_epoch(0)
        assert resumed.state_dict()["epoch"] == 0
        assert list(resumed) == list(stream(shuffle=shuffle, seed=5))


@in_both
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_readers(thorough: bool, drop_last: bool, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, 0, 1)
    whole = list(stream(shuffle=True))
    changes = ((3, 5, 1, 2), (2, 4, 3, 0), (1, 7, 2, 3), (2, 11, 1, 0))
    for before, stop, after, workers in changes if thorough else changes[:2]:
        had, states = [], []
        for rank in range(before):
            be_rank(monkeypatch, rank, before)
            data = stream(shuffle=True, drop_last=drop_last)
            had.append(list(islice(data, stop)))
            states.append(data.state_dict())
        assert list(chain(*zip(*had, strict=True))) == whole[: before * stop]
        rest: list[list[str]] = []
        for rank in range(after):
            be_rank(monkeypatch, rank, after)
            data = stream(shuffle=True, drop_last=drop_last)
            data.load_state_dict(states[rank % before])
            fork = "fork" if workers else None
            loader: Any = DataLoader(data, None, num_workers=workers, multiprocessing_context=fork)
            rest.append(list(loader))
            if after == 1 and not drop_last:
                assert sorted(loader) == wanted  # the next epoch is whole
        left = COUNT - before * stop
        left -= left % (after * max(workers, 1)) if drop_last else 0
        assert sorted(chain(*rest)) == sorted(whole[before * stop :][:left])


@pytest.mark.parametrize(("workers", "batch"), [(0, 4), (2, 3), pytest.param(3, None, marks=exhaustive)])
def test_stream_by_stateful_data_loader(workers: int, batch: int | None, wanted: list[str]) -> None:
    def loader() -> Any:
        data, fork = stream(shuffle=True, seed=2), "fork" if workers else None
        return StatefulDataLoader(data, batch, num_workers=workers, multiprocessing_context=fork)

    data = loader()
    whole, following = list(data), list(data)
    assert sorted(chain(*whole) if batch else whole) == wanted and whole != following
    for stop in (1, len(whole) - 2) if workers else range(len(whole)):
        begun = loader()
        steps = iter(begun)
        assert [next(steps) for _ in range(stop)] == whole[:stop]
        state = begun.state_dict()
        del steps
        resumed = loader()
        resumed.load_state_dict(state)
        assert list(resumed) == whole[stop:]
        assert list(resumed) == following


def test_states_of_others_are_refused(server: FaultServer, wanted: list[str]) -> None:
    state = stream().state_dict()
    numbered = StatefulSampler(ObjectDataset("gs://b/o")).state_dict()
    with pytest.raises(ValueError, match="not a state of an ObjectStream"):
        stream().load_state_dict({"seed": 1})
    with pytest.raises(ValueError, match="an order with shuffle False, and here it is 'global'"):
        stream(shuffle=True).load_state_dict(state)
    other = stream()
    other.load_state_dict(state | {"reader": [1, 2], "workers": 2})
    with pytest.raises(ValueError, match=r"reader 1 of 2 \(ranks times workers\): go on with as many"):
        iter(other)
    server.objects["o00"] = b"0 "
    with pytest.raises(ValueError, match=r"other data: other .* or versions of them"):
        stream().load_state_dict(state)
    with pytest.raises(ValueError, match="the state belongs to other data"):
        StatefulSampler(ObjectDataset("gs://b/o")).load_state_dict(numbered)
