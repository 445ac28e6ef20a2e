# SPDX-License-Identifier: Apache-2.0
"""A long real text that every Debian system carries: the licences of its base-files package.

The order is fixed and symbolic links are left out, so the same machine gives the same text in
every process. The text differs between machines only if base-files does; nothing depends on its
exact bytes, since all arms of a run read the same one.
"""

from pathlib import Path

LICENSES = Path("/usr/share/common-licenses")

# Long prose first: the 7,936-token prefix then lies within the first few of them.
ORDER = ("GPL-3", "GFDL-1.3", "LGPL-2.1", "Apache-2.0", "MPL-2.0", "MPL-1.1", "GPL-2", "LGPL-2",
         "GFDL-1.2", "GPL-1", "LGPL-3", "CC0-1.0", "Artistic", "BSD")


def long_text(folder: Path = LICENSES) -> str:
    """The text, about 220,000 characters; ``FileNotFoundError`` if the folder has none of it."""
    names = [name for name in ORDER if (folder / name).is_file()]
    if not names:
        raise FileNotFoundError(f"{folder}: no licence texts; install the package base-files")
    return "\n\n".join((folder / name).read_text("utf-8", "replace") for name in names)
