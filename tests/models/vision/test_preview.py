"""The preview of images: its counts and warnings, and a page that needs no other file."""

import base64
import html
import io
import re

from models.vision import sources
from models.vision.augmentation.random_view import Augmented
from models.vision.files.image_folder import ImageFolder
from models.vision.images.image_source import InMemoryImages
from models.vision.preview import __main__ as preview
from replicator.training.inputs.inputs import InputContext
from replicator.training.inputs.pipeline import pipeline

import numpy as np
import pytest
from PIL import Image, PngImagePlugin


def picture(seed, width=48, height=32):
  """A smooth image in colors, another for each seed."""
  pixels = np.random.default_rng(seed).integers(0, 256, [6, 8, 3], np.uint8)
  return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def run(capsys, *words):
  """The exit status of a command line, and its lines on both streams."""
  status = preview.main([str(word) for word in words])
  shown = capsys.readouterr()
  return status, shown.out.splitlines(), shown.err.strip()


def page_of(capsys, folder, *words):
  """The page of a command line and the lines after it."""
  status, shown, _ = run(capsys, *words, f"--out={folder / 'a.html'}")
  assert status == 0
  begin = next(i for i, line in enumerate(shown) if f"wrote {folder / 'a.html'}: " in line)
  return (folder / "a.html").read_text(), shown[begin:]


@pytest.fixture
def photos(tmp_path):
  """Six cats and four dogs with every fault of a folder, and a folder to test on."""
  root = tmp_path / "photos"
  for name in ("photos/cat", "photos/dog", "test/cat", "test/dog"):
    (tmp_path / name).mkdir(parents=True)
  for seed in range(5):
    picture(seed).save(root / "cat" / f"{seed}.png")
  for copy in ("photos/cat/copy", "photos/dog/a_cat", "test/cat/leaked"):
    picture(0).save(tmp_path / f"{copy}.png")
  picture(7).save(root / "dog" / "first.png")
  picture(8, 96, 64).save(root / "dog" / "large.jpg", quality=60)
  for torn in ("photos/dog/torn", "test/cat/a_torn"):  # Before the leaked one.
    (tmp_path / f"{torn}.png").write_bytes((root / "cat" / "1.png").read_bytes()[:200])
  picture(9).save(tmp_path / "test" / "dog" / "new.png")
  return root


def test_a_folder_with_every_fault_gets_a_line_for_each(photos, tmp_path, capsys):
  _, shown = page_of(capsys, tmp_path, photos, f"--test={tmp_path / 'test'}")
  assert shown == [
      f"wrote {tmp_path / 'a.html'}: 10 images of 2 classes",
      "warning: 1 image cannot be read: dog/torn.png (image file is truncated). Training stops "
      "there, unless on_error = 'skip'.",
      "warning: 1 image in two or more classes: copies with equal content and different labels, "
      "such as cat/0.png, cat/copy.png, dog/a_cat.png.",
      f"warning: 1 test image of {tmp_path / 'test'} is among the training images: "
      "cat/leaked.png.",
      "warning: 2 of 9 images are exact copies of another, such as cat/0.png, cat/copy.png, "
      "dog/a_cat.png. Held-out images may be among the training images.",
      "warning: 2 sizes, the shorter side from 32 to 64 px. Training uses center squares, "
      "without 33% of the median image."]


def test_a_test_set_of_other_classes_is_named(photos, tmp_path, capsys):
  (tmp_path / "test" / "dog").rename(tmp_path / "test" / "eel")
  _, shown = page_of(capsys, tmp_path, photos, f"--test={tmp_path / 'test'}")
  assert f"warning: {tmp_path / 'test'} has different classes: cat, eel. Its labels" in str(shown)


def embedded(text):
  """(caption, pixels) of the images of a page."""
  for tag in re.findall(r"<img[^>]*>", text):
    caption, content = re.search(r'alt="([^"]+)".* src="data:image/png;base64,([^"]+)"',
                                 tag).groups()
    yield html.unescape(caption), np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_the_page_shows_its_classes_and_the_first_batch_of_a_training(photos, tmp_path, capsys):
  text, _ = page_of(capsys, tmp_path, photos, "--resolution=20")
  assert not re.findall(r"(?:src|href)=\"(?!data:)|url\((?!#)|<script\s", text)
  assert "5 warnings" not in text and "4 warnings" in text and "<td>image file is trunc" in text
  classes, _, batch = text.partition("A batch, as")
  of_cats, _, of_dogs = classes.partition('<h3><span title="dog">')
  assert {caption.split("/")[0] for caption, _ in embedded(of_cats)} == {"cat"}
  assert [caption for caption, _ in embedded(of_dogs)] == [
      "dog/a_cat.png", "dog/first.png", "dog/large.jpg"]
  folder, shown = ImageFolder(str(photos), 20, "skip", memory_limit=0), list(embedded(batch))
  for source in (folder, Augmented(lambda: folder)):
    of_run = next(pipeline(source, InputContext(10)).as_numpy_iterator())  # As many as there are.
    some, shown = shown[:10], shown[10:]
    np.testing.assert_array_equal(np.stack([pixels for _, pixels in some]), of_run["image"])
    assert [caption for caption, _ in some] == [("cat", "dog")[i] for i in of_run["label"]]
  assert not shown
  assert "<tr><th>48 x 32<td>8" in text and "<tr><th>96 x 64<td>1" in text


def test_names_are_escaped_and_very_many_classes_are_not_all_shown(tmp_path, capsys, monkeypatch):
  pixels = np.random.default_rng(0).integers(0, 256, [140, 16, 16, 1], np.uint8)
  monkeypatch.setitem(sources.NAMED, "many", lambda: InMemoryImages(
      pixels, np.minimum(np.arange(140) % 70, 68), tuple(f"<{i}>" for i in range(70))))
  text, shown = page_of(capsys, tmp_path, "many", "--samples=130")
  assert "<0>" not in text and text.count('<h3><span title="&lt;') == 60
  assert "60 of 70 classes" in text and "130 of 140 images, drawn at random, were looked" in text
  assert shown[1:] == ["warning: 1 class without images: <69>."]


def test_a_turned_photo_has_the_size_that_a_person_sees_and_no_fault(tmp_path, capsys):
  exif = Image.Exif()
  exif[0x0112] = 6
  (tmp_path / "a").mkdir()
  picture(0).save(tmp_path / "a" / "a.jpg", exif=exif)
  text, shown = page_of(capsys, tmp_path, tmp_path)
  assert "<tr><th>32 x 48<td>1" in text
  assert "no warnings" in text and "Nothing was found." in text and len(shown) == 1


@pytest.mark.parametrize("words, line", [
    (["nowhere"], "nowhere: no such folder or file; write a folder or .zip of images, an .npz"),
    (["digits", "--resolution=0"], "--resolution=0: must be at least 1"),
    (["digits", "--out=no/where.html"], "--out=no/where.html: no is not a folder"),
    (["digits", "--resolution=64"], "--resolution=64: the images of digits have 8 px"),
    (["digits", "--gin_param=ImageFolder.resolution = 8"],
     "--gin_param: ImageFolder.resolution is never used"),
    (["digits", "--gin_param=Augmentation.hue = 3.0"],
     "Augmentation.hue = 3.0: must be in [0, 0.5]"),
    ([], "command line: the following arguments are required: DATA"),
])
def test_bad_input_is_one_line(words, line, capsys):
  status, _, error = run(capsys, *words)
  assert status == 2 and error.startswith(f"error: {line}") and "\n" not in error


def test_a_folder_without_a_readable_image_is_refused(tmp_path, capsys):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "1.png").write_text("no image")
  status, _, error = run(capsys, tmp_path)
  assert (status, error) == (
      2, f"error: {tmp_path}: none of 1 images can be read, such as a/1.png (its content is not "
         "an image)")


def test_what_a_person_must_know_is_at_the_top(tmp_path, capsys):
  for name in ("cat", "dog"):
    (tmp_path / "in" / name).mkdir(parents=True)
  for seed in range(3):
    picture(seed, 24, 24).save(tmp_path / "in" / "cat" / f"{seed}.png")
    (tmp_path / "in" / "dog" / f"{seed}.heic").write_bytes(b"of a telephone")
  levels = np.random.default_rng(0).integers(0, 2 ** 12, [240, 240], np.uint16)
  Image.fromarray(levels).save(tmp_path / "in" / "dog" / "12_bits.png")
  (tmp_path / "in" / "cat" / "gone.png").symlink_to("/nowhere.png")
  text, shown = page_of(capsys, tmp_path, tmp_path / "in", "--resolution=240")
  path = tmp_path / "in"
  assert shown[1:] == [
      f"warning: {path}: classes lose most of their files: dog 3 of 4 (files that are not images: "
      ".heic), such as dog/0.heic. Training stops there, unless on_error = 'skip'.",
      f"warning: {path}: 1 left out: broken links, such as cat/gone.png.",
      f"warning: {path}: 3 left out: files that are not images: .heic, such as dog/0.heic.",
      "warning: 1 image is nearly black, with no level above 15 of 255: dog/12_bits.png. Files of "
      "16 bits keep their upper 8: multiply 10 bits by 64, 12 by 16, 14 by 4, and save them again.",
      "warning: 3 images are much smaller than the 240 px of training, which enlarges them up to "
      "10.0 times: cat/0.png, cat/1.png, cat/2.png.",
      "warning: 2 sizes, the shorter side from 24 to 240 px. Training uses center squares, "
      "without 0% of the median image."]
  top, _, _ = text.partition("Classes")
  assert all(line.removeprefix("warning: ") in html.unescape(top) for line in shown[1:])


def test_a_setting_of_the_data_counts(tmp_path, capsys):
  (tmp_path / "in").mkdir()
  for seed in range(3):
    picture(seed).save(tmp_path / "in" / f"{seed}.png")
  (tmp_path / "in" / "a.csv").write_text("0.png,cat\n1.png,dog\n2.png,dog\n")
  text, [line, *_] = page_of(capsys, tmp_path, tmp_path / "in",
                             "--gin_param=ImageFolder.labels = 'a.csv'",
                             "--gin_param=Augmentation.flip = 0.0")
  assert "3 images of 2 classes" in line and "dog" in text
  assert "data = @Augmented, Augmentation.flip = 0.0<" in text


def test_each_file_is_decoded_a_few_times(tmp_path, capsys, monkeypatch):
  (tmp_path / "in" / "a").mkdir(parents=True)
  picture(0).save(tmp_path / "in" / "a" / "0.png")
  load, loaded = PngImagePlugin.PngImageFile.load_end, []
  monkeypatch.setattr(PngImagePlugin.PngImageFile, "load_end",
                      lambda image: loaded.append(image) or load(image))
  page_of(capsys, tmp_path, tmp_path / "in")
  assert len(loaded) <= 4  # To look, for its class, for a batch, and for one that is augmented.
