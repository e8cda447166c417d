"""The page of `tarshow --html`: `page` makes it of tiles (`tile`), counts (`cards`), and three files called `page`."""
