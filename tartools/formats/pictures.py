"""Names of fields that are pictures, which tarbench decodes."""

PICTURES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "gif", "bmp", "tif", "tiff")
