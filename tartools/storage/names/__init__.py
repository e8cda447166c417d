"""What users write, made into URLs: file lists, braces, wildcards, listings. Begin reading at `expand`."""
