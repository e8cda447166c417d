"""Tests of the room shards."""
