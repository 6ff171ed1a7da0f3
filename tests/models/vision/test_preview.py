"""The preview of images: what it counts, what it warns of, and a page that needs no other file."""

import base64
import html
import io
import re
import zipfile

import numpy as np
import pytest
from PIL import Image

from models.vision import convert, data
from models.vision.augmentation.random_view import Augmented
from models.vision.files.image_folder import ImageFolder
from models.vision.images.image_source import InMemoryImages
from models.vision.preview import __main__ as preview
from models.vision.preview import checks, drawing, duplicates, page
from models.vision.preview.contents import Contents
from models.vision.preview.survey import ROW, Survey, examine
from replicator.training.inputs import InputContext, batches

pytestmark = pytest.mark.usefixtures("restored")


def picture(seed, width=48, height=32):
  """A smooth image in colors, another for each seed."""
  pixels = np.random.default_rng(seed).integers(0, 256, [6, 8, 3], np.uint8)
  return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Seven cats and three dogs, with every fault of a folder."""
  root = tmp_path_factory.mktemp("photos")
  for name in ("cat", "dog", "bird"):
    (root / name).mkdir()
  for seed in range(5):
    picture(seed).save(root / "cat" / f"{seed}.png")
  picture(0).save(root / "cat" / "copy.png")
  picture(0).save(root / "dog" / "a_cat.png")
  picture(7).save(root / "dog" / "large.png")
  picture(7).resize((96, 64)).save(root / "dog" / "larger.jpg", quality=60)
  Image.new("RGB", (40, 40), (90, 90, 90)).save(root / "cat" / "wall.png")
  (root / "dog" / "torn.png").write_bytes((root / "cat" / "1.png").read_bytes()[:200])
  return root


@pytest.fixture(scope="module")
def seen(photos):
  contents = Contents(str(photos))
  return contents, examine(contents)


def titles(contents, survey, positions):
  return [contents.title(int(survey.indices[position])) for position in positions]


# ---- What there is ------------------------------------------------------------------------------


def test_every_image_is_counted_and_looked_at(seen):
  contents, survey = seen
  assert (contents.size, contents.class_names) == (11, ("cat", "dog"))
  assert survey.counts.tolist() == [7, 4]
  assert survey.num_examined == 11 and list(survey.unreadable) == [10]
  assert contents.title(10) == "dog/torn.png"
  assert survey.sizes() == {(48, 32): 8, (40, 40): 1, (96, 64): 1}
  assert survey.formats() == {"PNG": 9, "JPEG": 1}
  assert survey.is_one_color.tolist() == [name == "cat/wall.png" for name in titles(
      contents, survey, range(10))]
  np.testing.assert_allclose(survey.cut_away[0], 1 / 3)


def test_copies_and_what_looks_the_same_are_found(seen):
  contents, survey = seen
  [group] = survey.equal
  assert titles(contents, survey, group) == ["cat/0.png", "cat/copy.png", "dog/a_cat.png"]
  assert survey.num_copies == 2 and survey.in_two_classes(group)
  [pair] = survey.similar
  assert titles(contents, survey, pair) == ["dog/large.png", "dog/larger.jpg"]


def as_jpeg(image):
  file = io.BytesIO()
  image.save(file, "JPEG", quality=40)
  return Image.open(file)


MANY = [picture(seed) for seed in range(100)]


def thumbnails(images):
  return np.stack([np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX))
                   for image in images])


@pytest.mark.parametrize("change, least", [
    (as_jpeg, 98), (lambda image: image.resize((20, 30)), 98),
    (lambda image: image.point(lambda x: 0.8 * x), 98),
    (lambda image: image.crop((1, 1, 47, 32)), 60)], ids=["jpeg", "resized", "darker", "cropped"])
def test_what_looks_the_same_is_found_among_others(change, least):
  pairs = duplicates.similar(thumbnails([*MANY, *map(change, MANY)]), np.arange(200))
  assert (pairs[:, 0] + 100 == pairs[:, 1]).all()  # None that differ.
  assert len(pairs) >= least


def test_only_what_is_asked_for_is_compared():
  twice = thumbnails([MANY[0], MANY[1], MANY[0], MANY[1]])
  assert duplicates.similar(twice, np.array([1, 2, 3])).tolist() == [[1, 3]]
  assert duplicates.similar(twice, np.array([], int)).shape == (0, 2)
  assert duplicates.similar(np.full([2, 8, 9], 7, np.uint8), np.arange(2)).shape == (0, 2)


def test_a_turned_photo_has_the_size_that_a_person_sees(tmp_path):
  exif = Image.Exif()
  exif[0x0112] = 6
  (tmp_path / "a").mkdir()
  picture(0).save(tmp_path / "a" / "a.jpg", exif=exif)
  survey = examine(Contents(str(tmp_path)))
  assert survey.sizes() == {(32, 48): 1}


def test_a_sample_is_drawn_at_random_and_classes_are_counted_in_full(seen):
  contents, whole = seen
  survey = examine(contents, 6)
  assert survey.num_examined == 6
  np.testing.assert_array_equal(survey.counts, whole.counts)
  np.testing.assert_array_equal(survey.indices, examine(contents, 6).indices)
  assert {"cat/0.png", "dog/large.png"} - set(titles(contents, survey, range(len(survey.rows))))


@pytest.mark.parametrize("kind", ["zip", "shards", "resized"])
def test_archives_and_shards_have_the_same_images(kind, photos, tmp_path, capsys):
  if kind == "zip":
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
      for file in photos.glob("*/[!t]*"):
        archive.write(file, file.relative_to(photos))
    name, first = tmp_path / "photos.zip", "cat/0.png"
  else:
    whole = tmp_path / "in"
    for file in photos.glob("*/[!t]*"):
      (whole / file.parent.name).mkdir(parents=True, exist_ok=True)
      (whole / file.parent.name / file.name).write_bytes(file.read_bytes())
    name, first = tmp_path / "out", "images-00000-of-00001.tfrecord: record 0"
    convert.main([str(whole), str(name), "--shards=1", *["--resolution=20"] * (kind == "resized")])
  contents = Contents(str(name))
  survey = examine(contents)
  assert contents.title(0) == first and survey.counts.tolist() == [7, 3]
  assert contents.resolution == (20 if kind == "resized" else None)
  assert len(survey.equal) == len(survey.similar) == 1
  capsys.readouterr()


# ---- Warnings -----------------------------------------------------------------------------------


def lines(contents, survey, resolution=32):
  return [text for _, text in checks.concerns(contents, survey, resolution)]


def test_a_folder_with_every_fault_gets_a_line_for_each(seen):
  assert lines(*seen) == [
      "1 image cannot be read: dog/torn.png (image file is truncated). A training stops there, "
      "unless on_error = 'skip'.",
      "1 image in two classes or more: copies with equal content and different labels, such as "
      "cat/0.png and dog/a_cat.png.",
      "1 folder without any image: bird. It is no class, so labels differ from those of a folder "
      "where it has one.",
      "Many duplicates: 2 of 10 images (20 %) are copies of another. Held-out images may be among "
      "those trained on.",
      "Many near duplicates: 2 images (20 %) look the same as another.",
      "1 image of a single color: cat/wall.png."]


class Clean:
  """Contents of two classes without any fault."""

  class_names = ("cat", "dog")
  empty_folders = ()
  channels = 3

  def title(self, index):
    return f"{index}.png"


def clean(**changes):
  """A survey of 1,000 images of two classes without any fault, but for some changes."""
  rows = np.zeros(1000, ROW)
  rows["width"] = rows["height"] = 32
  rows["colors"] = 90
  rows["thumbnail"] = np.arange(72).reshape(8, 9)
  for name, values in changes.pop("rows", {}).items():
    rows[name][:len(values)] = values
  facts = {"counts": np.array([500, 500]), "equal": [], "similar": np.zeros([0, 2], int),
           "unreadable": {}}
  return Survey(np.arange(1000), rows, 1000, **{**facts, **changes})


@pytest.mark.parametrize("changes, line", [
    ({}, None),
    ({"counts": np.array([1000, 0])}, "1 class without any image: dog."),
    ({"counts": np.array([1000, 0])}, "All labels are equal: every image is of class “cat”"),
    ({"counts": np.array([900, 91])}, None),
    ({"counts": np.array([900, 90])}, "Very unequal classes: “cat” has 900 images, and “dog” 90."),
    ({"rows": {"colors": [0] * 949}}, None),
    ({"rows": {"colors": [0] * 950}}, "Nearly all images are gray: 950 of 1,000."),
    ({"rows": {"colors": [4] * 1000}}, "All images are gray: 1,000 of 1,000."),
    ({"rows": {"width": [20] * 9}}, None),
    ({"rows": {"width": [20] * 10}},
     "10 of 1,000 images (1 %) are smaller than 32 px, the least 20 px: scaled up"),
    ({"rows": {"width": [99] * 600}}, "The center square leaves out 68 % of the area of the"),
    ({"equal": [np.arange(10)]}, None),
    ({"equal": [np.arange(11)]}, "Many duplicates: 10 of 1,000 images (1 %) are copies"),
    ({"similar": np.arange(8).reshape(4, 2)}, None),
    ({"similar": np.arange(10).reshape(5, 2)}, "Many near duplicates: 10 images (1 %)"),
    ({"similar": np.array([[0, 1]]), "rows": {"label": [1]}},
     "1 pair of images look the same and have different labels, such as 0.png and 1.png."),
])
def test_a_concern_begins_where_it_should(changes, line):
  found = lines(Clean(), clean(**changes))
  assert any(text.startswith(line) for text in found) if line else not found


# ---- The page -----------------------------------------------------------------------------------


def run(capsys, *words):
  """The exit status of a command line, and what it writes to both streams."""
  status = preview.main([str(word) for word in words])
  shown = capsys.readouterr()
  return status, shown.out.splitlines(), shown.err.strip()


def embedded(text):
  """The images of a page with their captions."""
  for tag in re.findall(r"<img[^>]*>", text):
    found = re.search(r'alt="([^"]+)".* src="data:image/\w+;base64,([^"]+)"', tag)
    caption, content = found.groups()
    yield html.unescape(caption), Image.open(io.BytesIO(base64.b64decode(content)))


@pytest.fixture(scope="module")
def written(seen):
  contents, survey = seen
  return page.render(contents, survey, 32, checks.concerns(contents, survey, 32), [],
                     "python ...")


def test_the_command_writes_the_page_and_the_warnings(photos, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(page, "render", lambda *arguments: str(arguments[2]))
  status, shown, _ = run(capsys, photos, f"--out={tmp_path / 'a.html'}")
  assert status == 0
  assert shown[-7].endswith(f"wrote {tmp_path / 'a.html'}: 11 images of 2 classes")
  assert shown[-1] == "warning: 1 image of a single color: cat/wall.png."
  assert (tmp_path / "a.html").read_text() == "32"  # A power of 2 that fits most images.
  run(capsys, photos, f"--out={tmp_path / 'a.html'}", "--resolution=20")
  assert (tmp_path / "a.html").read_text() == "20"


def test_a_page_needs_nothing_else_and_names_every_picture(written):
  pictures = list(embedded(written))
  assert len(pictures) == written.count("<img") > 40
  assert all(caption for caption, _ in pictures)
  assert not re.findall(r"(?:src|href)=\"(?!data:)|url\((?!#)|<script", written)
  assert "5 warnings" in written or "6 warnings" in written
  assert all(html.escape(text, quote=False) in html.unescape(written) or text in html.unescape(
      written) for text in ("1 folder without any image: bird.", "python ..."))


def test_a_class_shows_its_own_images_as_squares(written):
  section = written.partition("Images per class")[2].partition("A batch")[0]
  of_cats, _, of_dogs = section.partition("<h3>dog")
  assert {caption.split("/")[0] for caption, _ in embedded(of_cats)} == {"cat"}
  assert sorted(caption for caption, _ in embedded(of_dogs)) == [
      "dog/a_cat.png", "dog/large.png", "dog/larger.jpg"]
  assert all(image.size == (32, 32) for _, image in embedded(section))


def test_the_batches_are_the_first_of_a_training(written, photos):
  section = written.partition("A batch, as")[2].partition("What is cut away")[0]
  folder = ImageFolder(str(photos), 32, "skip", memory_limit=0)
  shown = list(embedded(section))
  for source in (folder, Augmented(lambda: folder)):
    batch = next(batches(source, InputContext(24)).as_numpy_iterator())
    some, shown = shown[:24], shown[24:]
    np.testing.assert_array_equal(np.stack([np.asarray(image) for _, image in some]),
                                  batch["image"])
    assert [caption for caption, _ in some] == [("cat", "dog")[i] for i in batch["label"]]
  assert not shown


def test_what_is_cut_away_is_pale_outside_of_a_frame():
  image = Image.fromarray(np.full([100, 320, 3], 40, np.uint8))
  drawn = np.asarray(drawing.framed(image)).astype(int)
  assert drawn.shape == (100, 320, 3)
  assert (drawn[:, :110] == 40 + round(0.7 * 215)).all() and (drawn[:, 210:] > 180).all()
  assert (drawn[2:-2, 112:208] == 40).all()
  assert (drawn[:, [110, 209]] == drawing._FRAME).all()


def test_names_are_escaped_and_very_many_classes_are_not_all_shown(monkeypatch):
  names = tuple(f"<{number}>" for number in range(200))
  pixels = np.random.default_rng(0).integers(0, 256, [400, 16, 16, 1], np.uint8)
  monkeypatch.setitem(data.NAMED, "many", lambda: InMemoryImages(
      pixels, np.minimum(np.arange(400) % 200, 198), names))
  contents = Contents("many")
  survey = examine(contents)
  text = page.render(contents, survey, 16, [], [], "")
  assert "<199>" not in text and "&lt;199&gt;" in text
  assert text.count("<h3>&lt;") == 60 and "60 of 200 classes" in text
  assert text.count('<div><span title="') == 20  # Bars: the largest and the smallest.
  assert "All images have 16 x 16 pixels" in text and "Nothing was found" in text


@pytest.mark.parametrize("words, line", [
    (["nowhere"], "ImageFolder.path = 'nowhere': no such folder. Write the path of"),
    (["digits", "--resolution=0"], "--resolution=0: must be at least 1"),
    (["digits", "--samples=-1"], "--samples=-1: must be at least 1"),
    (["digits", "--out=cat.jpg"], "--out=cat.jpg: write the name of a .html file"),
    (["digits", "--out=no/where.html"], "--out=no/where.html: no is no folder"),
    (["digits", "--resolution=64"], "--resolution=64: the images of digits have 8 px"),
    (["digits", "--gin_param=ImageFolder.resolution = 8"],
     '--gin_param="ImageFolder.resolution = 8": a preview uses bindings of Augmentation alone'),
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
         "that of an image)")
