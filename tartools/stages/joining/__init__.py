"""Join two data sets by key: `partners` finds what the second has for a key, `adding` adds it to the samples."""
