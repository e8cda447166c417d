"""The page of `tarshow --html`: `page` puts it together from tiles (`tile`), `page.html`, `page.css` and `page.js`."""
