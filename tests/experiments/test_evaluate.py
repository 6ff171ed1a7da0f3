"""`experiments.evaluate`: numbers of folders, archives, arrays and runs, and planted mistakes."""

import json
import pathlib
import shutil
import zipfile

import keras
import numpy as np
import pytest
from PIL import Image

from experiments import evaluate, sample
from models.metrics.comparison import check_counts
from models.metrics.extractor import Extracted
from models.metrics.frechet import frechet_distance
from models.metrics.statistics import FeatureStatistics
from models.vision.digits import digit_images
from replicator.app import load
from replicator.console.flags import Parser
from replicator.errors import UsageError

COUNT = 24


class Colors:
  """An extractor of the means and deviations of the channels, NaN for black images."""

  name = "colors"
  num_features = 6
  resizing = "none"
  is_inception = False

  def __init__(self):
    self.calls = 0

  def __call__(self, images: np.ndarray) -> Extracted:
    self.calls += 1
    values = np.concatenate([images.mean((1, 2)), images.std((1, 2))], 1)
    values[~images.any((1, 2, 3))] = np.nan
    return Extracted(values.astype(np.float32), None)


class Gan:
  """A GAN of noise: its images are what its codes are."""

  latent_dim = 8 * 8 * 3
  num_classes = 0

  def latents(self, name, shape):
    return load.tf.random.stateless_uniform(shape, [3, 4], -1.0, 1.0)

  def generate(self, z, labels):
    return load.tf.reshape(z, [-1, 8, 8, 3])


def noise(seed: int, count: int = COUNT, size: int = 8) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, 256, [count, size, size, 3], np.uint8)


def save(folder: pathlib.Path, images: np.ndarray, kind: str = "png") -> pathlib.Path:
  folder.mkdir()
  for number, image in enumerate(images):
    Image.fromarray(image).save(folder / f"{number:03}.{kind}")
  return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with images of all kinds, and what only looks like it."""
  place = tmp_path_factory.mktemp("images")
  real, fake = noise(0), noise(1)
  save(place / "real", real)
  save(place / "fake", fake)
  save(place / "copy", real)
  save(place / "jpeg", fake, "jpg")
  save(place / "few", fake[:7])
  save(place / "one", fake[:1])
  save(place / "large", noise(1, size=16))
  save(place / "gray", np.repeat(fake[..., :1], 3, -1))
  unequal = save(place / "unequal", fake)
  Image.fromarray(noise(2, 1, 16)[0]).save(unequal / "010.png")
  broken = save(place / "broken", fake)
  (broken / "005.png").write_bytes(b"no image")
  deep = save(place / "deep", fake)
  Image.fromarray(np.full([8, 8], 40_000, np.uint16)).save(deep / "003.png")
  save(place / "black", np.zeros_like(fake))
  for name, other in (("classes", "dog"), ("others", "eel")):
    (place / name).mkdir()
    save(place / name / "cat", fake[:16])
    save(place / name / other, fake[16:])
  np.savez(place / "missing.npz", images=fake, labels=np.ones(COUNT, np.int64))
  (place / "empty").mkdir()
  (place / "file.txt").write_text("a text")
  (place / "no.zip").write_text("no archive")
  for name in ("run", "agent"):
    (place / name).mkdir()
    (place / name / "run.json").write_text(json.dumps({
        "program": ["-m", "experiments.gan"], "program_file": "", "argv": [],
        "working_directory": "."}))
    (place / name / "config.gin").write_text("")
  with zipfile.ZipFile(place / "fake.zip", "w") as archive:
    for file in sorted((place / "fake").iterdir()):
      archive.write(file, f"images/{file.name}")
  np.savez(place / "fake.npz", fake)
  np.savez(place / "unit.npz", np.float32(fake / 255))
  np.savez(place / "signed.npz", np.float32(fake / 127.5 - 1))
  np.savez(place / "cast.npz", np.uint8(fake / 255))
  np.savez(place / "first.npz", fake.transpose(0, 3, 1, 2))
  np.savez(place / "labels.npz", np.arange(4))
  return place


@pytest.fixture
def extractor(monkeypatch):
  found = Colors()
  monkeypatch.setattr(evaluate, "_extractor", lambda flags, source: found)
  return found


@pytest.fixture
def run(place, monkeypatch, capsys, tmp_path, restored):
  """A function that runs the command; returns status, standard output, standard error."""
  monkeypatch.chdir(place)
  for name in ("enable_op_determinism", "enable_tensor_float_32_execution"):
    monkeypatch.setattr(evaluate.tf.config.experimental, name, lambda *arguments: None)
  monkeypatch.setattr(load, "load_numbered", lambda run, *others: (
      (Gan() if run == "run" else object()), 20))

  def run(words: str) -> tuple[int, str, str]:
    status = evaluate.main([f"--cache={tmp_path / 'cache'}", *words.split()])
    return status, *capsys.readouterr()

  return run


def numbers(file: pathlib.Path) -> dict[str, float]:
  return {row["metric"]: row["value"] for row in json.loads(file.read_text())["rows"]}


# ---- What is computed ---------------------------------------------------------------------------


def test_a_folder_a_zip_and_an_array_have_the_numbers_of_their_images(run, extractor, tmp_path):
  features = [FeatureStatistics.of(extractor(noise(seed)).features) for seed in (0, 1)]
  for kind in ("fake", "fake.zip", "fake.npz"):
    file = tmp_path / f"{kind}.json"
    status, out, err = run(f"--real=real --fake={kind} --metrics=fid,prdc --json={file}")
    assert (status, err) == (0, "")
    found = numbers(file)
    assert found["fid"] == pytest.approx(frechet_distance(*features), rel=1e-6)
    assert list(found) == ["fid", "precision", "recall", "density", "coverage"]
  assert "Fréchet distance (colors)" in out and "FID" not in out
  assert "k = 3, closed balls" in out and "features: colors" in out


def test_statistics_alone_give_the_same_distance(run, extractor, tmp_path):
  run(f"--real=real --fake=fake --metrics=fid,prdc --json={tmp_path / 'a.json'}")
  run(f"--real=real --fake=fake --metrics=fid --json={tmp_path / 'b.json'}")
  a, b = (numbers(tmp_path / name)["fid"] for name in ("a.json", "b.json"))
  assert a == pytest.approx(b, rel=1e-12)


def test_samples_of_a_run_are_as_many_as_the_real_images(run, extractor, tmp_path):
  status, out, err = run(f"--real=real --fake=run --metrics=fid --json={tmp_path / 'a.json'}")
  assert (status, err) == (0, "")
  report = json.loads((tmp_path / "a.json").read_text())
  assert report["step"] == 20 and report["rows"][0]["num_generated"] == COUNT
  assert "generated by run, step 20, seed 0" in out


def test_what_a_run_makes_is_what_its_data_set_of_samples_holds(run, extractor, tmp_path, place):
  batches = list(evaluate.sampling.sample(Gan(), COUNT, 0))
  np.savez(tmp_path / "samples.npz", np.concatenate([images for images, _ in batches]))
  run(f"--real=real --fake=run --metrics=fid --json={tmp_path / 'a.json'}")
  run(f"--real=real --fake={tmp_path}/samples.npz --metrics=fid --json={tmp_path / 'b.json'}")
  assert numbers(tmp_path / "a.json") == numbers(tmp_path / "b.json")


def test_features_of_real_images_are_computed_once_for_each_data(run, extractor, place, tmp_path):
  shutil.copytree(place / "real", tmp_path / "data")
  words = f"--real={tmp_path}/data --fake=fake --metrics=fid --json={tmp_path}"
  assert run(f"{words}/a.json")[0] == 0 and extractor.calls == 2
  assert run(f"{words}/b.json")[0] == 0 and extractor.calls == 3
  Image.fromarray(noise(5, 1)[0]).save(tmp_path / "data" / "000.png")
  assert run(f"{words}/c.json")[0] == 0 and extractor.calls == 5
  first, second, other = (numbers(tmp_path / f"{name}.json")["fid"] for name in "abc")
  assert first == second != other


def test_images_of_other_sizes_are_resized_when_asked(run, extractor):
  status, out, err = run("--real=large --fake=fake --metrics=fid --resolution=8")
  assert (status, err) == (0, "")
  assert "center squares to 8x8, bicubic with antialiasing (Pillow) (real)" in out


def test_the_data_sets_of_the_project_have_names(run, tmp_path):
  np.savez(tmp_path / "digits.npz", digit_images()[0][::-1])
  status, out, _ = run(f"--real=digits --fake={tmp_path}/digits.npz --metrics=fid "
                       "--features=classifier --samples=120")
  assert status == 0 and "Fréchet distance (classifier of Digits" in out


def test_any_keras_model_has_features(run, tmp_path):
  inputs = keras.Input((None, None, 3))
  keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(inputs)).save(tmp_path / "mean.keras")
  status, out, _ = run(f"--real=real --fake=fake --metrics=fid --features={tmp_path}/mean.keras")
  assert status == 0 and "Fréchet distance (mean " in out


def test_the_sliced_distance_needs_no_features(run, monkeypatch):
  monkeypatch.setattr(evaluate, "_extractor", lambda *arguments: pytest.fail("not needed"))
  status, out, _ = run("--real=large --fake=large --metrics=swd")
  assert status == 0 and "Sliced Wasserstein distance " in out


def test_the_distance_within_classes_is_that_of_each_class(run, extractor, tmp_path, place):
  labels = np.arange(COUNT) % 2
  np.savez(tmp_path / "real.npz", images=noise(3), labels=labels)
  status, out, _ = run(f"--real={tmp_path}/real.npz --fake=classes --metrics=intra_fid,fid "
                       f"--json={tmp_path}/a.json")
  assert status == 0 and "Intra-class Fréchet distance (colors)" in out
  intra, whole = json.loads((tmp_path / "a.json").read_text())["rows"]
  statistics = lambda images: FeatureStatistics.of(Colors()(images).features)
  expected = {str(which): frechet_distance(statistics(noise(3)[labels == which]),
                                           statistics(generated))
              for which, generated in enumerate((noise(1)[:16], noise(1)[16:]))}
  assert intra["by_class"] == pytest.approx(expected, rel=1e-6)
  assert intra["value"] == pytest.approx(np.mean(list(expected.values())), rel=1e-6)
  assert whole["by_class"] is None and intra["method"].startswith("mean over 2 classes, ")


def test_a_run_has_the_classes_that_it_was_asked_for(run, extractor, monkeypatch, tmp_path):
  monkeypatch.setattr(Gan, "num_classes", 2)
  status, out, _ = run("--real=classes --fake=run --metrics=intra_fid")
  assert status == 0 and "mean over 2 classes, " in out


def test_neighbors_are_drawn_and_copies_are_on_top(run, extractor, place, tmp_path):
  folder = save(tmp_path / "half", np.concatenate([noise(1, 4), noise(0)[8:11]]))
  status, out, _ = run(f"--real=real --fake={folder} --metrics=fid --out={tmp_path}/out")
  assert status == 0 and "median distance to the nearest real image: " in out
  assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
      "distances.png", "metrics.json", "neighbors.png"]
  medians = json.loads((tmp_path / "out" / "metrics.json").read_text())[
      "median_distance_to_nearest_real"]
  assert min(medians["generated"], medians["real"]) > 0
  with Image.open(tmp_path / "out" / "neighbors.png") as file:
    picture = np.asarray(file)
  copy = noise(0)[8].repeat(4, 0).repeat(4, 1)
  np.testing.assert_array_equal(picture[1:33, 1:33], copy)
  np.testing.assert_array_equal(picture[1:33, 51:83], copy)  # Its nearest neighbor.


def test_a_failed_evaluation_leaves_no_folder(run, extractor, tmp_path):
  assert run(f"--real=real --fake=broken --metrics=fid --out={tmp_path}/out")[0] == 2
  assert not (tmp_path / "out").exists()


# ---- Planted mistakes ---------------------------------------------------------------------------


ERRORS = {  # The mistake: what was typed, and the only line.
    "arguments swapped: a run": (
        "--real=run --fake=real", "--real=run: is a run, whose images are generated; write it as"),
    "arguments swapped: data": (
        "--real=real --fake=digits", "--fake=digits: is real data; write it as --real"),
    "a misspelled data set": (
        "--real=digit --fake=fake", "no such folder or file; write one of images, or digits, sha"),
    "an empty folder": (
        "--real=real --fake=empty", "empty: has no images (file types: .bmp .gif .jpeg .jpg .png)"),
    "no such file": ("--real=real --fake=gone.zip", "gone.zip: no such folder or file"),
    "a file of text": (
        "--real=real --fake=file.txt", "file.txt: is a file; write a folder of images, a .zip or"),
    "a broken archive": (
        "--real=real --fake=no.zip", "no.zip: its content is not that of a .zip file"),
    "floats in [0, 1]": (
        "--real=real --fake=unit.npz", "has numbers from 0 to 1, and images are uint8 from 0 to "
        "255; save np.uint8(np.round(255 * images))"),
    "floats in [-1, 1]": (
        "--real=real --fake=signed.npz", "save np.uint8(np.round(127.5 * (images + 1)))"),
    "floats in [0, 1] cast to integers": (
        "--real=real --fake=cast.npz", "no number is above 1, as if images in [0, 1] had been"),
    "channels first": (
        "--real=real --fake=first.npz", "must be the channels, 1 or 3; write images.transpose(0"),
    "an array of no images": (
        "--real=real --fake=labels.npz", "has 0 arrays of images among: arr_0 [4]; save one"),
    "a broken image": (
        "--real=real --fake=broken", "005.png cannot be read as an image (cannot identify image"),
    "16 bits": ("--real=real --fake=deep", "003.png cannot be read as an image (it has more than"),
    "images of two sizes": (
        "--real=real --fake=unequal", "010.png is 16x16 and the first image 8x8; write --resol"),
    "another resolution": (
        "--real=real --fake=large", "--real=real: has images of 8x8 pixels, and --fake=large of"),
    "a misspelled metric": (
        "--real=real --fake=fake --metrics=fdi", "no metric 'fdi': write some of fid,kid,prdc,is,"
        "swd,intra_fid. Did you mean 'fid'?"),
    "too few samples for a subset": (
        "--real=real --fake=fake --metrics=kid", "metric 'kid' of 24 real and 24 generated images: "
        "it needs at least 1,000 of each"),
    "too few samples for a covariance": (
        "--real=real --fake=one", "metric 'fid' of 24 real and 1 generated images"),
    "other counts for sorted distances": (
        "--real=real --fake=few --metrics=swd", "it takes as many of both"),
    "features without classes": (
        "--real=real --fake=fake --metrics=is", "colors has features, but no logits of classes"),
    "NaN features": (
        "--real=real --fake=black", "The generated features are NaN or infinite in 24 of 24 rows"),
    "images without classes": (
        "--real=classes --fake=fake --metrics=intra_fid", "metric 'intra_fid': --fake=fake has no "
        "classes; put the images of each class into a folder of their own"),
    "other classes": (
        "--real=classes --fake=others --metrics=intra_fid", "--real=classes has the classes cat, "
        "dog, and --fake=others cat, eel; give the folders of both the same names"),
    "a class without samples": (
        "--real=classes --fake=missing.npz --metrics=intra_fid", "Class 0 has 16 real and 0 gen"),
    "more samples than images": (
        "--real=real --fake=fake --samples=25", "--samples=25: --real=real has 24 images"),
    "no samples": ("--real=real --fake=fake --samples=0", "--samples=0: must be at least 1"),
    "a run that makes no images": (
        "--real=real --fake=agent", "object has no 'latents', so it is no GAN that can be sampled"),
    "a folder that exists": (
        "--real=real --fake=fake --out=empty", "--out=empty: exists; write another name, or rem"),
    "a file that exists": (
        "--real=real --fake=fake --json=file.txt", "--json=file.txt: exists; write another name"),
}
WARNINGS = {  # The mistake: what was typed, and the warning.
    "data beside itself": ("--real=real --fake=real", "the generated images are the real ones"),
    "data beside a copy": ("--real=real --fake=copy", "the generated images are the real ones"),
    "PNG beside JPEG": (
        "--real=real --fake=jpeg", "the real files are PNG, and the generated ones JPEG"),
    "other counts": (
        "--real=real --fake=few", "24 real and 7 generated images: most metrics depend on both "
        "counts; --samples=7 takes as many of each"),
    "gray beside color": (
        "--real=real --fake=gray", "all generated images are gray, and the real ones have colors"),
    "another resizing": (
        "--real=large --fake=run --resolution=8", "resizing of the real images: center squares to"),
    "too few samples for the features": (
        "--real=real --fake=fake --samples=5", "with fewer samples than dimensions it says little"),
    "a cached statistic of other data": (
        "--real=real --fake=fake", "is not what was kept there (it has another key): it is made"),
}


@pytest.mark.parametrize("mistake", ERRORS)
def test_a_mistake_is_one_line(mistake, run, extractor):
  words, line = ERRORS[mistake]
  status, _, err = run(words + ("" if "--metrics" in words else " --metrics=fid,prdc"))
  assert line in err and err.startswith("error: ") and err.count("\n") == 1
  assert status == 2


@pytest.mark.parametrize("mistake", WARNINGS)
def test_what_changes_a_number_is_a_warning(mistake, run, extractor, tmp_path):
  words, line = WARNINGS[mistake]
  if "cached" in mistake:
    exchange_statistics(run, tmp_path / "cache" / "statistics")
  status, _, err = run(f"{words} --metrics=fid --json={tmp_path / 'a.json'}")
  assert status == 0
  assert [found for found in err.splitlines() if line in found]
  assert all(found.startswith("warning: ") for found in err.splitlines())
  warnings = json.loads((tmp_path / "a.json").read_text())["warnings"]
  assert err == "".join(f"warning: {found}\n" for found in warnings)


def exchange_statistics(run, kept: pathlib.Path) -> None:
  """Gives the cached statistics of two data sets each other's names."""
  for real in ("real", "gray"):
    run(f"--real={real} --fake=fake --metrics=fid")
  first, second = sorted(kept.iterdir())
  first.rename(kept / "other")
  second.rename(first)
  (kept / "other").rename(second)


FEATURES = {
    "inceptoin": "write inception, efficientnet, classifier, or a file .pth or .keras. Did you "
                 "mean 'inception'?",
    "gone.pth": "--features=gone.pth: no such file",
    "classifier": "is trained on data with classes, such as --real=digits, and not on real",
    "inception": "cannot be downloaded (no network): download it elsewhere, and write "
                 "Inception2015.weights = 'PATH', or here --features=PATH",
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_that_are_not_there_are_one_line(name, run, monkeypatch):
  def get_file(**arguments):
    raise OSError("no network")

  monkeypatch.setattr(keras.utils, "get_file", get_file)
  status, _, err = run(f"--real=real --fake=fake --features={name} --metrics=fid")
  assert status == 2 and FEATURES[name] in err and err.count("\n") == 1


def test_an_unknown_program_is_not_run_unseen(run, extractor, place, tmp_path):
  shutil.copytree(place / "run", tmp_path / "other")
  facts = json.loads((place / "run" / "run.json").read_text()) | {"program": ["other.py"]}
  (tmp_path / "other" / "run.json").write_text(json.dumps(facts))
  status, _, err = run(f"--real=real --fake={tmp_path}/other --metrics=fid")
  assert status == 2 and "names the program `other.py`" in err


def test_counts_are_checked_before_anything_is_computed():
  check_counts(["is"], 3, 10)
  with pytest.raises(UsageError, match="'prdc' of 5 real and 9 generated"):
    check_counts(["prdc"], 5, 9)


def test_the_step_of_a_run_is_a_number_or_the_best():
  parser = Parser()
  sample.add_loading_flags(parser)
  assert [parser.parse_args(words).step for words in ([], ["--step=best"], ["--step=30"])] == [
      None, "best", 30]
