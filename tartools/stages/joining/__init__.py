"""Fields of one data set, B, for the samples of another, A, by key.

`partners` reads B, and `partnerindex` finds what it has for a key; `adding` puts that into samples of A, and
`joinedtables` lists it in a table. Begin reading at `adding.join_batches`.
"""
