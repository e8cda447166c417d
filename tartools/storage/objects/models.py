"""The files in which botocore describes services, read in half of the time: most of what a new client takes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

from botocore import exceptions, loaders


class _Files(loaders.JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """Reads files to plain dicts, which keep their order too, and not to OrderedDict."""

    def load_file(self, file_path: str) -> Any:
        """Return what the file *file_path*, without its ending, contains; None if there is none."""
        for end, opened in ((".json", open), (".json.gz", gzip.open)):
            try:
                with opened(file_path + end, "rb") as file:
                    return json.loads(file.read())
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                pass
        return None


class Models(loaders.Loader):  # type: ignore[misc]
    """Finds descriptions in the folders *paths*: only of services that are asked for, of the 400 that there are."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(list(paths), _Files(), include_default_search_paths=False)
        self._asked: set[str] = set()

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return the description *type_name* of a service. Raises: as botocore's loader."""
        self._asked.add(service_name)
        return super().load_service_model(service_name, type_name, api_version)

    def list_available_services(self, type_name: str) -> list[str]:
        """Return those services that were asked for and have the description *type_name*."""
        return [name for name in sorted(self._asked) if self._has(name, type_name)]

    def _has(self, service: str, type_name: str) -> bool:
        try:
            return bool(self.list_api_versions(service, type_name))
        except exceptions.DataNotFoundError:
            return False
