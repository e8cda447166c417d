"""Tests of the room storage."""
