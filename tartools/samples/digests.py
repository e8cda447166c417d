"""BLAKE2b for code that ordinary runs import: hashlib loads OpenSSL first, which takes 3 ms.

It is the function of hashlib, which takes it from the same module, so digests are equal.
"""

try:
    from _blake2 import blake2b
except ImportError:  # a Python that has it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
