"""Tests of the room samples."""
