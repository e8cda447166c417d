"""Join two data sets by key: `second` reads B, `partners` finds what it has for a key of A, `adding` adds that."""
