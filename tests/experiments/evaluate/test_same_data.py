"""The same labeled images in every form: the same classes, numbers and training batches."""

import json
import zipfile

from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.distances.frechet import frechet_distance, intra_class_frechet_distance
from models.metrics.distances.neighbors import neighbor_scores
from models.vision import convert, sources
from models.vision.files.image_arrays import ImageArrays
from models.vision.files.image_folder import ImageFolder
from models.vision.files.image_zip import ImageZip
from models.vision.files.libraries import TFDS, HuggingFace
from models.vision.images.write import png
from models.vision.shards.sharded_images import TFRecords
from replicator.training.inputs.inputs import InputContext
from replicator.training.inputs.pipeline import stream
from tests.experiments.evaluate.images import Colors
from tests.programs import tfds_data

import numpy as np
import pytest

NAMES = tuple(map(str, range(12)))
LABELS = np.repeat(np.arange(12), 20)


def drawn(seed):
  """240 images, of which each class has its own brightness."""
  noise = np.random.default_rng(seed).normal(0, 4, [240, 8, 8, 3])
  return np.clip(20 * LABELS[:, None, None, None] + 10 + noise, 0, 255).astype(np.uint8)


IMAGES, FAKES = drawn(0), drawn(1)


def folders(root):
  for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
    (root / "photos" / NAMES[label]).mkdir(parents=True, exist_ok=True)
    (root / "photos" / NAMES[label] / f"{number:03}.png").write_bytes(png(image))
  return str(root / "photos"), ImageFolder(str(root / "photos"), 8)


def archive(root):
  names = [f"mydata/{number // 50:05}/img{number:08}.png" for number in range(240)]
  with zipfile.ZipFile(root / "a.zip", "w") as file:
    for name, image in zip(names, IMAGES, strict=True):
      file.writestr(name, png(image))
    file.writestr("mydata/dataset.json", json.dumps({"labels": [
        (name.removeprefix("mydata/"), label)
        for name, label in zip(names, LABELS.tolist(), strict=True)]}))
  return str(root / "a.zip"), ImageZip(str(root / "a.zip"), 8)


def arrays(root):
  np.savez(root / "a.npz", images=IMAGES, labels=LABELS)
  return str(root / "a.npz"), ImageArrays(str(root / "a.npz"))


def shards(root):
  path, _ = folders(root)
  convert.convert(sources.open_encoded(path), str(root / "shards"), 3)
  return str(root / "shards"), TFRecords(str(root / "shards"), 8)


def hugging_face(root):
  datasets = pytest.importorskip("datasets")
  names = sorted(NAMES)  # As a folder of images becomes a data set there: 0, 1, 10, 11, 2, ...
  data = datasets.Dataset.from_dict(
      {"image": [{"bytes": png(image), "path": None} for image in IMAGES],
       "label": [names.index(NAMES[label]) for label in LABELS]},
      features=datasets.Features({"image": datasets.Image(),
                                  "label": datasets.ClassLabel(names=names)}))
  data.save_to_disk(str(root / "hf"))
  return f"hf:{root / 'hf'}", HuggingFace(str(root / "hf"), 8)


def tensorflow_datasets(root):
  tfds_data.write_labeled("twelve", root, IMAGES, (LABELS, NAMES))
  return "tfds:twelve", TFDS("twelve", 8, data_dir=str(root))


FORMS = [folders, archive, arrays, shards, hugging_face, tensorflow_datasets]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_has_the_same_classes_numbers_and_batches(form, run, extractor, tmp_path):
  path, source = form(tmp_path)
  assert source.class_names == NAMES and source.summary()["classes"] == dict.fromkeys(NAMES, 20)
  batches = stream(source, InputContext(32, seed=3))
  found = next(batches)
  batches.close()
  (tmp_path / "reference").mkdir()
  batches = stream(arrays(tmp_path / "reference")[1], InputContext(32, seed=3))
  expected = next(batches)
  batches.close()
  for name in ("image", "label"):
    np.testing.assert_array_equal(found[name], expected[name])

  np.savez(tmp_path / "fakes.npz", images=FAKES, labels=LABELS)
  status, _, err = run(f"--real={path} --fake={tmp_path}/fakes.npz --metrics=fid,intra_fid,prdc "
                       f"--json={tmp_path}/found.json")
  assert status == 0, err
  rows = json.loads((tmp_path / "found.json").read_text())["rows"]
  real, fake = (Colors()(images).features for images in (IMAGES, FAKES))
  improved, prdc = neighbor_scores(real, fake)
  intra = intra_class_frechet_distance(real, LABELS, fake, LABELS)
  assert [row["value"] for row in rows] == pytest.approx(
      [frechet_distance(FeatureStatistics.of(real), FeatureStatistics.of(fake)), intra.mean,
       *improved[:2], *prdc[2:]], rel=1e-6)
  assert rows[1]["by_class"] == pytest.approx(
      {NAMES[label]: value for label, value in intra.by_class.items()}, rel=1e-6)
