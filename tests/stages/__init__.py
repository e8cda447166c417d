"""Tests of the room stages."""
