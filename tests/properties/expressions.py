"""Expressions that would take all memory or time, and random ones, evaluated by a process that may take little of both.

    python -m tests.properties.expressions                 the bombs, each on a sample
    python -m tests.properties.expressions SEED COUNT      so many random ones

It prints a line for each: how it ended, and the expression. The system kills it if one of them exceeds its limits.
"""

from __future__ import annotations

import math
import random
import resource
import sys
from collections.abc import Iterator

from tartools import tar
from tartools.errors import SampleError, UsageError
from tartools.samples.sample import Sample
from tartools.stages.filtering.expression import Expression

MEMORY = 600 << 20  # bytes of addresses that one may take besides what the process has before
SECONDS = 30  # of the processor for one, on a machine that does more than that

DOUBLED, PAIRS = "[[1, 1]]", "[(1, 1)]"  # lists that are 2 to the power of 30 long, written out
for name in "abcdefghijklmnopqrstuvwxyzABCD":
    DOUBLED, PAIRS = f"[[{name}, {name}] for {name} in {DOUBLED}]", f"[({name}, {name}) for {name} in {PAIRS}]"
LOOP = "for a in txt * 20 for b in txt for c in txt for d in txt"

TEXT = r"""
'a'.ljust(10**10)
'a'.rjust(10**10)
'a'.center(10**10)
'1'.zfill(10**10)
'\t'.expandtabs(10**10)
'a'.replace('a', 'b' * 9000).replace('b', 'c' * 9000).replace('c', 'd' * 9000)
'%1000000000d' % 1
'%.1000000000f' % 1
f'{1:>1000000000}'
'{:>1000000000}'.format(1)
'{0:>1000000000}'.format_map([1])
match('(?:(?:(?:a{1000}){1000}){1000})', txt)
match('a{99999999}', txt)
match('(a{1000}){1000}', txt)
match('(?:a(?#c){1000}){1000}', txt)
match('(?x)(?:a {1000}) # \n {1000}', txt)
match('(?:a{999}){999}', '')
match('(' * 5000 + ')' * 5000, txt)
match('(?:' * 400 + ')' * 400, txt)
match('a' * 10**6, txt)
match('((((((((((a|b))))))))))+Z', 'ab' * 999999 + 'Z')
match('(a|aa)+$', 'a' * 999999 + 'b')
match('(?:(a)|(b))+(?:c|d){e<=3}', 'a' * 999999)
match('(a(?R)?a)b', 'a' * 99999 + 'b')
match('(a(?1)?a)b', 'a' * 99999 + 'b')
match('(a+)+$', 'a' * 40 + 'b')
match('(.*)*(.*)*x$', long)
[match('(x+x+)+y', 'x' * 30) LOOP]
[match('a' + str(len(txt)) + a + b + c + d, txt) LOOP]
9 ** 9 ** 9
9**4000000
[9**4000000 for x in txt]
1 << 10**10
(1 << 999) * (1 << 999)
2 ** -(2**1000)
-9 ** 9**9
10**300 * 10**300 * 10**300
round(5, -10**9)
round(5.5, 10**18)
True << 10**12
'a' * 10**10
10**10 * 'a'
[0] * 10**10
10**10 * [0]
(0,) * 10**9 + (1,)
b'a' * 10**10
'a' * -1
'a' * 9999999 + 'b' * 9999999
[txt * 9999 LOOP]
[[0] * 9999 LOOP]
[(a, b, c, d) LOOP]
len([1 LOOP])
[1 for a in [0] * 99999 if [1 LOOP]]
len(str(DOUBLED))
DOUBLED == DOUBLED
DOUBLED != 1 and DOUBLED < DOUBLED
2 in DOUBLED
max(DOUBLED)
min(DOUBLED, DOUBLED)
str(DOUBLED + DOUBLED)
'a' in str(DOUBLED[0])
field(PAIRS[0])
has(PAIRS[0])
size(PAIRS[0])
match(PAIRS[0], txt)
width(PAIRS[0])
field('json:o').get(PAIRS[0])
field('json:o')[PAIRS[0]]
PAIRS[0] in field('json:o')
'a' * 999999 in 'a' * 999999 + 'b'
[('a' * 99999).find('a' * 9999 + 'b') LOOP]
[long == long + '' LOOP]
['b' in long LOOP]
[long.count('b') LOOP]
[long.lower() LOOP]
[long[1:] LOOP]
[long + a LOOP]
[long.split('a') LOOP]
[long.replace('a', 'b') LOOP]
[long.strip('b') LOOP]
long.split()
('a' * 999999).strip('b' * 999999 + 'a')
(long * 3).split('a')
('a' * 999999).replace('', 'a' * 99)
[field('json:o') LOOP]
[field('json:' + a + b + c + d) LOOP]
[field('long') LOOP]
[has(a + b + c + d) LOOP]
[size('txt') LOOP]
[int('9' * 4000) LOOP]
[float('9' * 4000) LOOP]
int('9' * 999999)
float('9' * 999999)
int('f' * 99999, 16)
int('9' * 4300) * 9**300
str(int('9' * 4300))
field('json:o').items() == [field('json:o').items() LOOP]
[field('json:list') + [a] LOOP]
().__class__
txt.__len__()
txt.format.x
len.__self__
(lambda: 1)()
[y := 1]
[*txt]
max(*txt)
__import__('os')
open('/etc/passwd')
[x for x in txt].append(1)
{1: 2}
{1, 2}
txt.encode('idna')
min([1], key=len)
max(txt, key=txt.lower)
len(txt.lower)
1 @ 2
await x
yield 1
rand()
dict(a=1)
[1 for txt[0] in txt]
"""
BOMBS = [
    line.replace("DOUBLED", DOUBLED).replace("PAIRS", PAIRS).replace("LOOP", LOOP) for line in TEXT.strip().split("\n")
]
BOMBS += ["not " * 300 + "txt", "-" * 50000 + "1", "(" * 150 + "1" + ")" * 150, "[" * 190 + "]" * 190]
BOMBS += ["1" + "+1" * 9000, "txt" + ".lower()" * 300, "txt" + "[0]" * 500]
BOMBS += [f"[1 {' '.join(f'for a{n} in [0]' for n in range(400))}]"]
BOMBS += [f"[{'0, ' * 5000}] == [[{'0, ' * 5000}] {LOOP}]"]
OPERATORS = "+ - * / // % ** << >> & | ^ == != < <= > >= in is and or * ** +"
METHODS = "lower() upper() split() strip('ab') keys() items() values() isdigit()"
FUNCTIONS = "int float str len abs min max round field has"
VALUES = "cls txt long key __index__ 'a' '9'*99 0 1 -7 2.5 10**9 None none field('json:o') field('json:list') has('x')"


def sample() -> Sample:
    """Return the sample that expressions are evaluated on."""
    parts = {"txt": b"abcdefgh" * 4, "cls": b"3\n", "long": b"a" * 2_000_000}
    parts["json"] = b'{"a": 1, "list": [' + b"0, " * 99_999 + b'0], "o": {"k": "v", "n": null, "x": 0.5}}'
    return Sample(b"key", tuple(tar.new_member(b"key." + name.encode(), payload) for name, payload in parts.items()))


def no_fact(_name: str, _member: object) -> object:
    raise ValueError("no picture")


def ended(text: str, on: Sample) -> str:
    """Return how the expression *text* ends on a sample; die if it takes more than it may."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        return str(Expression(text, measure=no_fact).matches(on))
    except (UsageError, SampleError) as error:
        assert error.message and "\n" not in str(error)
        return f"{type(error).__name__} {len(str(error))}"


def made(chance: random.Random, depth: int, loops: tuple[str, ...] = ()) -> str:
    """Return a random expression of at most *depth* parts inside each other; it may use the names of *loops*."""

    def inner(*own: str) -> str:
        return made(chance, depth - 1, loops + own)

    if depth == 0:
        return chance.choice([*VALUES.split(), *loops])
    name = f"x{len(loops)}"
    kind = chance.randrange(10)
    if kind < 3:
        return f"({inner()} {chance.choice([*OPERATORS.split(), 'not in', 'is not'])} {inner()})"
    if kind == 3:
        return f"{chance.choice(['not', '-', '~', '+'])} ({inner()})"
    if kind == 4:
        return f"{chance.choice(FUNCTIONS.split())}({inner()})"
    if kind == 5:
        return f"{chance.choice(['min', 'max', 'round', 'match', 'int'])}({inner()}, {inner()})"
    if kind == 6:
        more = f"replace({inner()}, {inner()})", f"find({inner()})", f"get({inner()})"
        return f"({inner()}).{chance.choice([*METHODS.split(), *more])}"
    if kind == 7:
        return f"({inner()})[{chance.choice([inner(), ':', f'{inner()}:', f'::{inner()}'])}]"
    if kind == 8:
        return f"[{inner(name)} for {name} in {inner()}{chance.choice(['', f' if {inner(name)}'])}]"
    return chance.choice([f"[{inner()}, {inner()}]", f"({inner()}, {inner()})", f"({inner()} if {inner()} else 1)"])


def wanted(words: list[str]) -> Iterator[str]:
    """Yield the expressions that *words*, SEED and COUNT, ask for."""
    if not words:
        yield from BOMBS
        return
    chance = random.Random(int(words[0]))
    for _ in range(int(words[1])):
        yield made(chance, chance.randint(1, 5))


def main() -> None:
    """Evaluate the expressions that the command line asks for."""
    on = sample()
    Expression("match('a', txt)").matches(on)  # what is imported
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    for text in wanted(sys.argv[1:]):
        sys.stdout.write(text[:120].encode("unicode_escape").decode() + "\t")
        sys.stdout.flush()
        sys.stdout.write(ended(text, on) + "\n")


if __name__ == "__main__":
    main()
