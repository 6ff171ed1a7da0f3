"""A contract of all sources of images: the same ones in order, drawn or kept, and converted."""

import functools
import io
import json
import sys
import zipfile

from models.vision import convert, sources
from models.vision.builtin.shapes import Shapes
from models.vision.images.image_source import Subset, classes_of, labels_of, read
from models.vision.images.write import png
from models.vision.sources import TFDS, EncodedExamples, HuggingFace, ImageArrays, ImageFolder
from replicator.app import config
from replicator.configuration import operative
from tests.programs import tfds_data
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 256, [5, 8, 8, 3], np.uint8)
LABELS = np.array([0, 0, 1, 2, 2])
NAMES = ("bird", "cat", "dog")
FILES = [f"{NAMES[label]}/{number}.png" for number, label in enumerate(LABELS)]
ORDER = np.array([4, 0, 0, 3])


def folder(root):
  for name, image in zip(FILES, IMAGES, strict=True):
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(png(image))
  return str(root), lambda limit: ImageFolder(str(root), 8, memory_limit=limit)


def labeled_folder(root):
  path, _ = folder(root)
  (root / "labels.csv").write_text("".join(f"{name},{name[:-6]}\n" for name in FILES))
  return path, lambda limit: ImageFolder(path, 8, memory_limit=limit, labels="labels.csv")


def archive(root, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(root / "a.zip", "w", compression) as file:
    for name, image in reversed(list(zip(FILES, IMAGES, strict=True))):
      file.writestr(name, png(image))
  path = str(root / "a.zip")
  return path, lambda limit: sources.ImageZip(path, 8, memory_limit=limit)


def deflated_archive(root):
  return archive(root, zipfile.ZIP_DEFLATED)


def arrays(root):
  np.savez(root / "a.npz", images=IMAGES, labels=LABELS)
  return str(root / "a.npz"), lambda limit: ImageArrays(str(root / "a.npz"))


def folder_of_arrays(root):
  np.save(root / "images.npy", IMAGES)
  np.save(root / "labels.npy", LABELS)
  return str(root), lambda limit: ImageArrays(str(root))


def shards(root):
  (root / "in").mkdir()
  folder(root / "in")
  convert.convert(sources.open_encoded(str(root / "in")), str(root / "out"), 2)
  path = str(root / "out")
  return path, lambda limit: sources.TFRecords(path, 8, memory_limit=limit)


def data_set_of_tfds(root):
  tfds_data.write_labeled("pets", root, IMAGES, (LABELS, NAMES))
  return "tfds:pets", lambda limit: TFDS("pets", 8, data_dir=str(root), memory_limit=limit)


def data_set_of_hugging_face(root):
  datasets = pytest.importorskip("datasets")
  (root / "4.png").write_bytes(png(IMAGES[4]))
  images = [*({"bytes": png(image), "path": None} for image in IMAGES[:4]),
            {"bytes": None, "path": str(root / "4.png")}]  # In a file of its own.
  features = datasets.Features({
      "image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES)),
      "size": datasets.Value("int32"), "share": datasets.Value("float32"),
      "breed": datasets.Value("string"), "young": datasets.Value("bool")})
  rows = {"image": images, "label": LABELS.tolist(), "size": [3, 1, 0, 1, 2], "share": [0.5] * 5,
          "breed": ["siamese", *["collie"] * 4], "young": [False, True, True, False, True]}
  data = datasets.Dataset.from_dict(rows, features=features)
  datasets.DatasetDict({"train": data, "test": data.select([3])}).save_to_disk(str(root / "pets"))
  data.save_to_disk(str(root / "one"))
  path = str(root / "pets")
  return f"hf:{path}", lambda limit: HuggingFace(path, 8, memory_limit=limit)


MAKERS = [folder, labeled_folder, archive, deflated_archive, arrays, folder_of_arrays, shards,
          data_set_of_tfds, data_set_of_hugging_face]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def made(request, tmp_path_factory):
  """The data as a command line names it, and a function that opens the source."""
  return request.param(tmp_path_factory.mktemp(request.param.__name__))


@pytest.mark.parametrize("limit", [0, 10_000], ids=["drawn", "kept"])
def test_examples_are_those_of_the_data_in_order(made, limit):
  source = made[1](limit)
  assert (source.size, source.image_shape, source.num_classes) == (5, (8, 8, 3), 3)
  assert source.class_names == (("0", "1", "2") if isinstance(source, ImageArrays) else NAMES)
  images, labels = read(source, ORDER)
  np.testing.assert_array_equal(images, IMAGES[ORDER])
  assert labels.tolist() == LABELS[ORDER].tolist()
  # TensorFlow calls functions with state one by one where operations are deterministic.
  graph = tf.function(source.load).get_concrete_function(tf.TensorSpec([], tf.int64)).graph
  assert limit or not [each.type for each in graph.get_operations() if each.op_def.is_stateful]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_source_tells_its_examples_from_others(make, tmp_path, monkeypatch):
  def digest(name):
    (tmp_path / name).mkdir()
    return make(tmp_path / name)[1](0).digest()

  first = digest("one")
  assert digest("copy") == first
  with monkeypatch.context() as patch:  # Arrays are not read, and have no sizes.
    patch.setitem(globals(), "IMAGES", np.concatenate([np.zeros_like(IMAGES[:1]), IMAGES[1:]]))
    is_seen = make in (folder, labeled_folder, archive, deflated_archive, shards)
    assert (digest("another image") != first) == is_seen
  labels = np.array([0, 1, 1, 2, 2])
  monkeypatch.setitem(globals(), "LABELS", labels)
  monkeypatch.setitem(globals(), "FILES", [f"{NAMES[k]}/{i}.png" for i, k in enumerate(labels)])
  assert digest("another label") != first


def test_the_label_of_every_example_and_the_sizes_of_classes_are_known(made):
  source = made[1](0)
  assert source.labels.tolist() == labels_of(source).tolist() == LABELS.tolist()
  assert classes_of(source).counts == (2, 1, 2)
  part = Subset(source, ORDER)
  assert part.labels.tolist() == LABELS[ORDER].tolist()
  assert part.summary() == {"classes": dict(zip(source.class_names, (2, 0, 2), strict=True))}


def test_what_a_command_names_is_converted(made, tmp_path):
  assert convert.main([made[0], str(tmp_path / "out"), "--shards=2", "--resolution=8"]) == 0
  source = sources.TFRecords(str(tmp_path / "out"))
  images, labels = read(source, np.arange(5))
  np.testing.assert_array_equal(images, IMAGES)
  assert labels.tolist() == LABELS.tolist()
  assert json.loads((tmp_path / "out" / sources.sharded_images.INDEX).read_text())["images"] == 5


def test_a_command_takes_a_source_of_any_module():
  found, expected = map(sources.open_encoded, ("models.vision.builtin.digits:Digits", "digits"))
  assert found.read(3) == expected.read(3) and sources.named("tfds:mnist") is None
  for name, why in (("nowhere:A", "No module named 'nowhere'"), ("math:A", "no attribute 'A'")):
    line = refusal(sources.open_encoded, name)
    assert why in line and "MODULE:CLASS" in line


# ---- Data sets of other packages ----------------------------------------------------------------


def test_a_split_and_a_column_of_hugging_face_are_named_or_refused(tmp_path, monkeypatch):
  data_set_of_hugging_face(tmp_path)
  pets, line_of = str(tmp_path / "pets"), functools.partial(refusal, HuggingFace)
  assert HuggingFace(pets, 8, split="test").size == 1
  assert HuggingFace(str(tmp_path / "one"), 8).size == 5  # A data set without splits.
  assert HuggingFace(pets, 8, label="size").class_names == ("0", "1", "2", "3")
  assert HuggingFace(pets, 8, label="breed").class_names == ("collie", "siamese")
  assert HuggingFace(pets, 8, label="young").labels.tolist() == [0, 1, 1, 0, 1]
  assert HuggingFace(pets, 8, label=None).class_names == ("all",)
  for settings, line in [
      ({"label": "bred"}, f"no such column in {pets}; it has: image, label, size, share, breed, "
                          "young; use None if images have no classes"),
      ({"image": "label"}, f"HuggingFace.image = 'label': is not an image column in {pets}"),
      ({"label": "share"}, f"HuggingFace.label = 'share' of {pets}: has '0.5', which is not a cl"),
      ({"split": "validation"}, f"path = '{pets}': 'validation' cannot be opened (")]:
    assert line in line_of(pets, 8, **settings)
  opened = sources.open_encoded(f"hf:{pets}@test,label=breed")
  assert (opened.labels.tolist(), opened.class_names) == ([0], ("collie",))
  assert sources.open_encoded(f"hf:{pets},label=").class_names == ("all",)
  assert "'lable=breed' is not a column; use image=COLUMN or label=COLUMN" in refusal(
      sources.open_encoded, f"hf:{pets},lable=breed")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  assert "nowhere': 'train' cannot be opened (" in line_of(str(tmp_path / "nowhere"), 8)


def test_a_split_and_a_feature_of_tfds_are_named_or_refused(tmp_path):
  data_set_of_tfds(tmp_path)
  line_of = functools.partial(refusal, TFDS, resolution=8, data_dir=str(tmp_path))
  assert TFDS("pets", 8, split="train[:40%]", data_dir=str(tmp_path)).size == 2
  assert TFDS("pets", 8, label=None, data_dir=str(tmp_path)).class_names == ("all",)
  assert "breed': no such feature in pets; it has: image, label" in line_of("pets", label="breed")
  assert line_of("pats").startswith("TFDS.name = 'pats': cannot be opened (")
  assert line_of("pets", split="test").startswith("TFDS.name = 'pets': cannot be opened (")


def test_a_command_takes_settings_of_the_data(tmp_path):
  data_set_of_hugging_face(tmp_path)
  path = f"hf:{tmp_path / 'pets'}"
  assert sources.open_encoded(path).class_names == NAMES
  config.parse([], ["HuggingFace.label = 'size'"])
  assert sources.open_encoded(path).class_names == ("0", "1", "2", "3")
  operative.check_all_used()


def test_a_feature_inside_another_one_is_a_class(tmp_path):
  tfds = pytest.importorskip("tensorflow_datasets")
  smiles = [True, False, False, True, True]
  tfds_data.write(
      "faces", tmp_path, IMAGES,
      {"attributes": {"Male": np.bool_, "Smiling": np.bool_},
       "boxes": tfds.features.Sequence(np.int64)},
      {"attributes": [{"Male": True, "Smiling": smile} for smile in smiles], "boxes": [[1, 2]] * 5})
  made = functools.partial(TFDS, "faces", 8, data_dir=str(tmp_path))
  _, labels = read(made(label="attributes/Smiling"), np.arange(5))
  assert labels.tolist() == smiles
  for label, line in [
      ("attributes", "has several features in faces; use one of: attributes/Male, attributes/Sm"),
      ("attributes/Old", "no such feature in faces; it has: attributes/Male, attributes/Smiling"),
      ("boxes", "is not a class in faces, but has the shape (None,); use one of: attributes, box"),
      ("breed", "no such feature in faces; it has: attributes, boxes, image")]:
    assert line in refusal(made, label=label)


@pytest.mark.parametrize("source, package, line", [
    (HuggingFace, "datasets", "package datasets: pip install 'replicator[huggingface]'"),
    (TFDS, "tensorflow_datasets", "needs TensorFlow Datasets: pip install 'replicator[tfds]'")])
def test_a_missing_package_is_named(source, package, line, monkeypatch):
  monkeypatch.setitem(sys.modules, package, None)
  assert line in refusal(source, "cifar10", 32)


# ---- Examples as files --------------------------------------------------------------------------


SHAPES = Shapes(size=1400)


@pytest.fixture(scope="module")
def encoded():
  return EncodedExamples(SHAPES, "shapes", files=["a"])


def test_files_have_the_pixels_that_a_training_loads(encoded):
  # All but the first one differed by a level while a graph of its own drew them.
  indices = np.array([0, 177, 517, 618, 1295, 1311])
  images, labels = read(SHAPES, indices)
  for index, expected in zip(indices.tolist(), images, strict=True):
    with Image.open(io.BytesIO(encoded.read(index))) as image:
      np.testing.assert_array_equal(np.asarray(image), expected)
  np.testing.assert_array_equal(encoded.labels[indices], labels)


def test_an_example_is_named_by_its_number(encoded):
  assert encoded.name(3) == "shapes: example 3"
  assert (encoded.class_names, list(encoded.files())) == (SHAPES.class_names, ["a"])
