"""Sounds as tensors: all formats whole, parts by place and seed, resampled, read by ranges; and damage."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
import soxr
import torch
from torch.utils.data import DataLoader, default_collate

from tartools.errors import SampleError, StorageError
from tartools.tar import member
from tartools.train import Sound, TableDataset, WebDataset, ZipDataset, loader, padded, sounddecoding
from tests.archives import encoded, photograph
from tests.commands.test_zip import zipped
from tests.conftest import make_tar
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

FORMS = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG", "oga": "OGG", "opus": "OGG", "mp3": "MP3"}
RATE = 8000
COUNT = 11


def ramp(frames: int, form: str = "WAV", channels: int = 1, rate: int = RATE, **options: Any) -> bytes:
    """Return a sound whose frame n has the value n / 32768; a second channel has half of that."""
    values = (np.arange(frames) % 32768)[:, None] // np.arange(1, channels + 1)
    file = io.BytesIO()
    soundfile.write(file, values.astype(np.int16), rate, format=form, **options)
    return file.getvalue()


def begin_of(waveform: torch.Tensor) -> int:
    """Return the number of the first frame of *waveform*, a part of a ramp; check that the others follow it."""
    numbers = (waveform[0] * 32768).round().to(torch.int64)
    assert torch.equal(numbers, numbers[0] + torch.arange(len(numbers)))
    return int(numbers[0])


@pytest.fixture
def ramps(_here: None) -> list[str]:
    """Write eleven ramps of different lengths, of 1 to 3.5 seconds, with texts; return their keys."""
    keys = [f"{number:02d}" for number in range(COUNT)]
    members = [
        (f"{key}.{field}", payload)
        for number, key in enumerate(keys)
        for field, payload in (("flac", ramp(8000 + 2000 * number, "FLAC")), ("txt", key.encode()))
    ]
    Path("a.tar").write_bytes(make_tar(members))
    return keys


# ---- whole ----


@pytest.mark.parametrize("suffix", FORMS)
def test_every_format_is_a_waveform(suffix: str) -> None:
    sound = ramp(9000, FORMS[suffix], 2, **({"subtype": "OPUS"} if suffix == "opus" else {}))
    expected, rate = soundfile.read(io.BytesIO(sound), dtype="float32", always_2d=True)
    jpeg = encoded(photograph(1, 32, 24), "jpeg")
    Path("a.tar").write_bytes(make_tar([(f"a.{suffix}", sound), ("a.jpg", jpeg), ("a.cls", b"3"), ("a.m4a", b"m")]))
    Path("a.zip").write_bytes(zipped([(f"a.{suffix}", sound), ("a.jpg", jpeg), ("a.cls", b"3"), ("a.m4a", b"m")]))
    fields = f"{suffix} jpg cls m4a"
    for data in (
        TableDataset("a.tar", fields, "torch"),
        WebDataset("a.tar", fields=fields, decode="torch"),
        WebDataset("a.tar").decode("torch").to_tuple(*fields.split()),
        ZipDataset("a.zip", fields, "torch"),
    ):
        ((waveform, found), picture, label, other) = next(iter(data))
        assert (waveform.dtype, waveform.is_contiguous(), found) == (torch.float32, True, rate)
        assert torch.allclose(waveform, torch.from_numpy(expected.T.copy()), atol=1e-6) and waveform.shape[0] == 2
        assert (picture.shape, picture.dtype, label, other) == ((3, 24, 32), torch.float32, 3, b"m")
    for how in ("torch", Sound()):
        ((waveform, found),) = TableDataset("a.tar", suffix, {suffix: how})[0]
        assert torch.allclose(waveform, torch.from_numpy(expected.T.copy()), atol=1e-6) and found == rate
    stays = TableDataset("a.tar", suffix, "torchrgb8")[0]
    assert stays == (sound,)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_sounds(workers: int, ramps: list[str]) -> None:
    options: dict[str, Any] = {"fields": "flac txt", "decode": "torch"}
    batches = [
        *loader("a.tar", 4, shuffle=False, collate_fn=padded, num_workers=workers, **options),
        *DataLoader(WebDataset("a.tar", **options).batched(4, collation_fn=padded), None, num_workers=min(workers, 1)),
    ]
    found = []
    for ((values, lengths), rates), keys in batches:
        assert (values.shape, values.dtype) == ((len(keys), 1, max(lengths)), torch.float32)
        assert rates.tolist() == [RATE] * len(keys)
        for value, length, key in zip(values, lengths.tolist(), keys, strict=True):
            assert begin_of(value[:, :length]) == 0 and not value[:, length:].any()
            found.append((key, length))
    assert found == [(key, 8000 + 2000 * number) for number, key in enumerate(ramps)] * 2
    unequal = r"field 'flac', item 0 has shapes \[1, 8000\] and \[1, 10000\] in one batch, .*: write collate_fn="
    with pytest.raises(
        RuntimeError, match=unequal + r"tartools.train.padded .*, or decode=\{'flac': tartools.train.So"
    ):
        next(iter(loader("a.tar", 4, shuffle=False, **options)))


# ---- parts ----


def test_parts_by_place(ramps: list[str]) -> None:
    for at, begins in (("begin", [0, 0]), ("middle", [2000, 12_000])):
        data = TableDataset("a.tar", "flac", {"flac": Sound(seconds=0.5, at=at)})
        for row, begin in zip((0, 10), begins, strict=True):
            ((waveform, rate),) = data[row]
            assert (waveform.shape, rate, begin_of(waveform)) == ((1, 4000), RATE, begin)
    ((short, _),) = TableDataset("a.tar", "flac", {"flac": Sound(seconds=2, at="middle")})[0]
    assert (short.shape, begin_of(short)) == ((1, 8000), 0)
    ((filled, _),) = TableDataset("a.tar", "flac", {"flac": Sound(seconds=2, at="random", pad=True)})[0]
    assert filled.shape == (1, 16_000) and begin_of(filled[:, :8000]) == 0 and not filled[:, 8000:].any()


def begins_of(batches: Any) -> dict[str, int]:
    found = {}
    for (waveforms, rates), keys in batches:
        assert waveforms.shape == (len(keys), 1, 4000) and rates.tolist() == [RATE] * len(keys)
        assert not {*keys} & {*found}
        found |= {key: begin_of(waveform) for key, waveform in zip(keys, waveforms, strict=True)}
    return found


def test_random_parts_follow_seed_epoch_and_sample(ramps: list[str]) -> None:
    """The same for any loader, worker and resume; others in another epoch and of another seed."""
    part = {"flac": Sound(seconds=0.5, at="random")}
    options: dict[str, Any] = {"fields": "flac txt", "decode": part, "seed": 5}
    data = loader("a.tar", 4, **options)
    first, second = begins_of(data), begins_of(data)
    assert sorted(first) == sorted(second) == ramps
    assert all(0 <= first[key] <= 4000 + 2000 * number for number, key in enumerate(ramps))
    assert len({*first.values()}) > 8 and sum(first[key] != second[key] for key in ramps) > 8
    assert begins_of(loader("a.tar", 4, **options | {"seed": 6})) != first
    assert begins_of(loader("a.tar", 3, num_workers=2, **options)) == first
    stream = WebDataset("a.tar", shuffle=4, **options).batched(3, collation_fn=default_collate)
    assert begins_of(DataLoader(stream, None, num_workers=2)) == first
    stages = WebDataset("a.tar", shuffle=4, seed=5).decode(part).to_tuple("flac", "txt")
    assert begins_of(stages.batched(4, collation_fn=default_collate)) == first
    stopped = loader("a.tar", 4, **options)
    found = begins_of([next(iter(stopped))])
    resumed = loader("a.tar", 2, num_workers=2, **options)
    resumed.load_state_dict(stopped.state_dict())
    assert found | begins_of(resumed) == first and len(found) == 4


def test_resampled_and_mono() -> None:
    sound = ramp(22_050, "WAV", 2, 44_100)
    stored = soundfile.read(io.BytesIO(sound), dtype="float32")[0]
    waveform, rate = Sound(rate=16_000, mono=True).decode(sound)
    assert rate == 16_000
    expected = soxr.resample(stored.mean(axis=1), 44_100, 16_000)
    assert torch.allclose(waveform[0], torch.from_numpy(expected), atol=1e-6)
    for new_rate in (8000, 16_000, 44_100, 48_000):
        for seconds in (0.1, 0.25, 0.3333):
            waveform, rate = Sound(rate=new_rate, seconds=seconds, at="middle").decode(sound)
            assert (waveform.shape, rate) == ((2, round(seconds * new_rate)), new_rate)
    waves = np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, waves, 44_100, format="FLAC")
    waveform, _ = Sound(rate=16_000).decode(file.getvalue())
    assert int(torch.fft.rfft(waveform[0]).abs().argmax()) == 440 and waveform.shape == (1, 16_000)


def test_a_part_is_read_alone() -> None:
    Path("a.tar").write_bytes(
        make_tar([("a.wav", ramp(1 << 22)), ("a.txt", b"a"), ("b.wav", ramp(9)), ("b.txt", b"b")])
    )
    for at in ("begin", "middle", "random"):
        with mock.patch("tartools.tar.member.read_range", wraps=member.read_range) as reading:
            data = loader("a.tar", 2, fields="wav txt", decode={"wav": Sound(seconds=1, at=at)}, collate_fn=list)
            ((one, _), key), ((other, _), _) = sorted(next(iter(data)), key=lambda pair: pair[1])
        read = sum(call.args[2] - call.args[1] for call in reading.call_args_list)
        assert read < 16_000 + 6 * max(io.DEFAULT_BUFFER_SIZE, 8192)
        assert (one.shape, other.shape, key) == ((1, 8000), (1, 9), "a" if isinstance(key, str) else b"a")
        assert at != "begin" or one[0, 7999] == 7999 / 32768


@pytest.mark.parametrize("scheme", ["s3", *also("gs", "http", "ais")])
@pytest.mark.parametrize("form", ["WAV", "FLAC"])
def test_a_part_is_fetched_alone(scheme: str, form: str, server: FaultServer) -> None:
    suffix = form.lower()
    noise = np.random.default_rng(1).integers(-30_000, 30_000, 1 << 22).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, noise, RATE, format=form)
    server.objects["a.tar"] = make_tar([(f"a.{suffix}", file.getvalue()), ("a.txt", b"a")])
    data = TableDataset(server.url(scheme, "a.tar"), suffix, {suffix: Sound(seconds=1, at="middle")})
    server.requests.clear()
    ((waveform, _),) = data[0]
    begin = ((1 << 22) - 8000) // 2
    assert np.array_equal((waveform[0].numpy() * 32768).astype(np.int16), noise[begin : begin + 8000])
    ranges = [request.headers.get("range", "") for request in server.requests if request.method == "GET"]
    ends = [re.fullmatch(r"bytes=(\d+)-(\d+)", text) for text in ranges]
    assert None not in ends and 0 < len(ends) < 30
    assert sum(int(end[2]) - int(end[1]) for end in ends if end) < 1_000_000 < len(server.objects["a.tar"]) / 8


# ---- what can't be decoded ----


def test_damage_names_sample_and_field() -> None:
    whole = {"wav": ramp(9000), "flac": ramp(9000, "FLAC"), "ogg": ramp(9000, "OGG"), "mp3": ramp(9000, "MP3")}
    damaged = {
        "wav": (whole["wav"][:-500], "it is truncated: it has 17,500 bytes of samples instead of 18,000"),
        "flac": (whole["flac"][:-500], "frames instead of 9,000|can't be decoded: "),
        "ogg": (b"OggS" + bytes(500), "can't be decoded: "),
        "mp3": (b"hello", "it does not begin as a WAV, FLAC, Ogg or MP3 sound"),
    }
    for suffix, (payload, reason) in damaged.items():
        Path("a.tar").write_bytes(make_tar([(f"k.{suffix}", payload)]))
        for data in (
            TableDataset("a.tar", suffix, "torch"),
            TableDataset("a.tar", suffix, {suffix: Sound(seconds=10, pad=True)}),
            WebDataset("a.tar").decode({suffix: Sound()}).to_tuple(suffix),
        ):
            with pytest.raises(SampleError, match=rf"^a\.tar: sample 'k': field '{suffix}': .*({reason})"):
                next(iter(data))
    assert begin_of(Sound(seconds=0.5).decode(whole["wav"])[0]) == 0  # what is whole is decoded
    assert Sound().decode(whole["ogg"][:-50])[0].shape[1] < 9000  # a truncated Ogg is a shorter one: for tarcheck
    Path("a.tar").write_bytes(make_tar([("k.wav", b"")]))
    with pytest.raises(SampleError, match=r"sample 'k': field 'wav': it is empty"):
        TableDataset("a.tar", "wav", "torch")[0]


def test_a_bomb_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small FLAC of silence, and one whose header claims hours, are refused, and a part of one is decoded."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(1 << 22, np.int16), RATE, format="FLAC")
    silence = file.getvalue()
    assert len(silence) < 1 << 18
    monkeypatch.setattr(sounddecoding, "MAX_SOUND_BYTES", 1 << 20)
    with pytest.raises(SampleError, match=r"more than 0 GiB decoded: take a part, as by tartools.train.Sound\("):
        Sound().decode(silence)
    assert Sound(seconds=1).decode(silence)[0].shape == (1, 8000)
    claimed = bytearray(ramp(9000, "FLAC"))
    claimed[21] = claimed[21] & 0xF0 | 0x0F  # 36 bits of STREAMINFO: frames
    with pytest.raises(SampleError, match=r"more than 0 GiB"):
        Sound().decode(bytes(claimed))


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
@pytest.mark.parametrize("readable", [0, 20, 70, 500])
def test_a_failure_to_read_is_raised_and_not_printed(
    form: str, readable: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """libsndfile would print a traceback, and take the sound for truncated."""

    class Failing(io.BytesIO):
        def readinto(self, buffer: Any, /) -> int:
            if self.tell() + len(buffer) > readable:
                raise StorageError("the server is away", url="s3://b/a.tar")
            return super().readinto(buffer)

    monkeypatch.setattr(sounddecoding, "truncation", lambda *_: "")
    for how in (Sound(), Sound(seconds=0.1, at="middle")):
        with pytest.raises(StorageError, match="the server is away"):
            how.decode(Failing(ramp(9000, form)))
    assert capfd.readouterr() == ("", "")


def test_a_sound_that_does_not_say_its_length() -> None:
    """FLAC that was written to a pipe has no count of frames: libsndfile decodes parts of it, and fails at its end."""
    streamed = bytearray(ramp(20_000, "FLAC"))
    streamed[21] &= 0xF0
    streamed[22:26] = bytes(4)  # 36 bits of STREAMINFO: frames; 0: unknown
    waveform, _ = Sound(seconds=0.5).decode(bytes(streamed))
    assert (waveform.shape, begin_of(waveform)) == ((1, 4000), 0)
    for how, said in (
        (Sound(), r"so that its end can't be read: ffmpeg -i IN OUT writes one that does"),
        (Sound(seconds=9), r"so that its end can't be read"),
        (Sound(seconds=0.5, at="middle"), r"only at='begin' takes a part of it"),
        (Sound(seconds=0.5, at="random"), r"only at='begin' takes a part of it"),
    ):
        with pytest.raises(SampleError, match=rf"its header does not say how long it is(, |: ){said}"):
            how.decode(bytes(streamed))


def test_without_soxr_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "soxr", None)
    Path("a.tar").write_bytes(make_tar([("k.wav", ramp(90))]))
    assert TableDataset("a.tar", "wav", {"wav": Sound(rate=RATE)})[0][0][0].shape == (1, 90)
    with pytest.raises(
        SampleError,
        match=r"field 'wav': resampling from 8000 to 16000 .* needs soxr, .*pip install soxr \(or the extra sound\)$",
    ):
        TableDataset("a.tar", "wav", {"wav": Sound(rate=16_000)})[0]


def test_compressed_and_columns_and_empty_sounds() -> None:
    Path("a.tar").write_bytes(make_tar([("k.wav.gz", gzip.compress(ramp(90))), ("l.wav.gz", gzip.compress(ramp(0)))]))
    data = TableDataset("a.tar", "wav.gz", {"wav.gz": Sound(seconds=0.01, at="middle")})
    assert begin_of(data[0][0][0]) == 5
    with pytest.raises(SampleError, match="it has no samples"):
        data[1]
    stream = WebDataset("a.tar").decode({"wav.gz": Sound()}).slice(1)
    assert begin_of(next(iter(stream))["wav.gz"][0]) == 0


def test_arguments() -> None:
    for wrong in (
        {"rate": 0},
        {"rate": 1.5},
        {"rate": True},
        {"seconds": 0},
        {"seconds": -1},
        {"at": "end"},
        {"pad": True},
    ):
        with pytest.raises(ValueError, match=r"^(rate is|seconds is|at is|pad fills)"):
            Sound(**wrong)  # type: ignore[arg-type]
    Path("a.tar").write_bytes(make_tar([("k.wav", ramp(9))]))
    for decode in (Sound(), ["torch", Sound()]):
        with pytest.raises(TypeError, match=r"^Sound is for a field: decode=\{'flac': Sound\(\.\.\.\)\}"):
            TableDataset("a.tar", "wav", decode)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decode names the field 'flac', and the fields are wav"):
        TableDataset("a.tar", "wav", {"flac": Sound()})
