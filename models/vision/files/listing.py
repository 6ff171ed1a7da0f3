"""Finds which files of a folder or an archive are images, and reports the others."""

import collections
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from replicator import UsageError
from replicator.console.formatting import listed

from absl import logging

SUFFIXES = (".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm",
            ".tif", ".tiff", ".webp")
"""The suffixes of image files, in lower case."""

NO_IMAGE = "files that are not images"
BROKEN = "broken links"
FORBIDDEN = "folders without read permission"
CIRCULAR = "links to a parent folder"
IN_NO_CLASS = "images without a class"

# Folders and files made by file managers, trash cans and network drives, in lower case.
_OF_TOOLS = {"$recycle.bin", "#recycle", "@eadir", "__macosx", "lost+found",
             "system volume information", "desktop.ini", "thumbs.db"}
# Suffixes of files that accompany images, one for each of them or one for all.
_BESIDE = {".csv", ".db", ".gz", ".h5", ".html", ".json", ".jsonl", ".log", ".mat", ".md", ".npy",
           ".npz", ".parquet", ".pdf", ".pkl", ".pt", ".pth", ".py", ".tar", ".tfrecord", ".tsv",
           ".txt", ".xml", ".yaml", ".yml", ".zip"}
_PART = re.compile(r"(train|val|valid|test|eval|dev)(ing|idation|uation)?[-_ ]?(set|data|images?)?"
                   r"[-_ ]?\d*", re.IGNORECASE)


def is_image(name: str) -> bool:
  """Returns whether a path in a folder or archive is an image, and no part of it is hidden."""
  return PurePosixPath(name).suffix.lower() in SUFFIXES and not is_hidden(name)


def is_hidden(name: str) -> bool:
  """Returns whether a part of a path begins with a dot, or was made by the system."""
  return any(part.startswith(".") or part.lower() in _OF_TOOLS for part in name.split("/"))


def printable(name: str) -> str:
  """Makes a name printable in one line, escaping other bytes, line breaks etc.: `caf\\xe9`."""
  if name.isprintable():
    return name
  text = os.fsencode(name).decode(errors="backslashreplace")
  return "".join(repr(each)[1:-1] if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each
                 for each in text)


def class_of(name: str) -> str:
  """Returns the first folder of a path; in NFC, since a Mac writes `é` as two characters."""
  return unicodedata.normalize("NFC", name.partition("/")[0])


def none_found(left: Mapping[str, str]) -> str:
  """Describes a folder or archive without images, given the reasons for skipping its files."""
  shown = [name for name in left if not is_hidden(name)]
  among = (f" among {len(shown):,} files, such as {shown[0]} ({left[shown[0]]})" if shown else "")
  return f"has no images{among}; file types: {' '.join(SUFFIXES)}"


def report(path: str, left: Mapping[str, str]) -> None:
  """Logs how many files are left out for each reason, ignoring hidden ones.

  `left` has reasons by file name; `path` is the folder or the archive.
  """
  by_reason = collections.defaultdict(list)
  for name, reason in left.items():
    if not is_hidden(name) and not _is_list(name):
      by_reason[reason].append(name)
  for reason, names in by_reason.items():
    logging.warning("%s: %s left out: %s, such as %s", path, f"{len(names):,}",
                    _in_words(reason, names), names[0])


def check_classes(path: str, images: Sequence[str], left: Mapping[str, str], skips: bool,
                  setting: str) -> None:
  """Checks that the first folders of images are classes that keep most of their files.

  Args:
    path: the folder or the archive.
    images: the names of the images, with their folders.
    left: why the other files were left out, by name.
    skips: whether to log a class that loses most of its files as an error, instead of raising.
    setting: the setting for skipping, such as `ImageFolder.on_error`.

  Raises:
    UsageError: the folders are splits of a data set, or a class loses most of its files.
  """
  kept = collections.Counter(map(class_of, images))
  if len(kept) > 1 and all(map(_PART.fullmatch, kept)):
    raise UsageError(f"{path}: its folders {listed(sorted(kept))} are splits of a data set, not "
                     f"classes; use the path of one, such as {path}/{min(kept)}")
  lost = collections.defaultdict(list)
  for name, reason in left.items():
    if not is_hidden(name) and _is_loss(name, reason):
      lost[class_of(name)].append(name)
  if worst := [each for each, names in lost.items() if len(names) > kept[each]]:
    losses = [f"{each} {len(lost[each]):,} of {len(lost[each]) + kept[each]:,} "
              f"({_in_words(left[lost[each][0]], lost[each])})" for each in worst]
    line = (f"{path}: classes lose most of their files: {listed(losses)}, such as "
            f"{lost[worst[0]][0]}")
    if not skips:
      raise UsageError(f"{line}; fix or remove them, or set {setting} = 'skip' to skip them")
    logging.error("%s", line)


def _is_loss(name: str, reason: str) -> bool:
  """Returns whether a file that is left out seems to be an image of a class."""
  if reason == NO_IMAGE:
    return "/" in name and PurePosixPath(name).suffix.lower() not in _BESIDE
  return reason == FORBIDDEN or (reason == BROKEN and "/" in name)


def _is_list(name: str) -> bool:
  return name.endswith((".csv", ".json"))


def _in_words(reason: str, names: Sequence[str]) -> str:
  """Describes why files are left out, with the most frequent suffixes if they are the reason."""
  if reason != NO_IMAGE:
    return reason
  endings = collections.Counter(PurePosixPath(name).suffix.lower() for name in names)
  return f"{reason}: {listed([ending or 'no ending' for ending, _ in endings.most_common()])}"
