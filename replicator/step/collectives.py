"""Operations across replicas, usable anywhere in a step and in plain eager code (one replica).

Every function takes any nest of tensors or numbers, keeps `None`, and makes one collective for
each dtype, however many leaves there are. Every replica must make the same calls in the same
order, with the same structures and shapes; where they do not, tracing ends with an error
that names the call. Under `parameter_server` a step sees one replica, its own.

`groups` are disjoint sets of replicas of equal size that together hold all of them, such as
`[[0, 1], [2, 3]]`: each group then acts as if it were alone. The default is one group of all.
The sums of all groups travel in one collective, which grows with their number.

The gradient convention is that of the whole library: a replica's loss is the mean over its own
examples, and the optimizer averages gradients over replicas. The gradients below are such
that this average is the gradient of the same program on one replica. In them r is a
replica, s runs over the replicas of r's group, and dy is the gradient that arrives.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf
import tree

from replicator.errors import UsageError
from replicator.step import all_reduce
from replicator.step.all_reduce import Group, Groups, Nest


def all_sum(values: Nest, groups: Groups = None) -> Nest:
  """The sum over replicas, `[...] -> [...]`: `y_r = sum_s x_s`, so `dx_r = sum_s dy_s`."""
  values, group = all_reduce.checked_call("all_sum", values, groups, _numeric)
  return all_reduce.group_all_reduce(values, group)


def all_mean(values: Nest, groups: Groups = None) -> Nest:
  """The mean over replicas, `[...] -> [...]`: `y_r = mean_s x_s`, so `dx_r = mean_s dy_s`."""
  values, group = all_reduce.checked_call("all_mean", values, groups, _floating)
  return all_reduce.group_all_reduce(values, group, divisor=group.size)


def all_min(values: Nest, groups: Groups = None) -> Nest:
  """The least over replicas, `[...] -> [...]`; of bools, whether all are true.

  `dx_r = [x_r = y] / m sum_s dy_s`, where m replicas share the least value.
  """
  return _extreme("all_min", values, groups, tf.reduce_min, tf.reduce_all)


def all_max(values: Nest, groups: Groups = None) -> Nest:
  """The greatest over replicas, `[...] -> [...]`; of bools, whether any is true.

  `dx_r = [x_r = y] / m sum_s dy_s`, where m replicas share the greatest value.
  """
  return _extreme("all_max", values, groups, tf.reduce_max, tf.reduce_any)


def _extreme(call: str, values: Nest, groups: Groups, of_numbers: Callable, of_bools: Callable
             ) -> Nest:
  values, group = all_reduce.checked_call(call, values, groups)
  return all_reduce.map_tensors(
      lambda x: (of_bools if x.dtype == tf.bool else of_numbers)(x, axis=0),
      all_reduce.group_all_gather(values, group))


def all_gather(values: Nest, groups: Groups = None) -> Nest:
  """The tensors of all replicas, stacked: `[...] -> [replicas, ...]`, in the group's order.

  `y_r[s] = x_s`, so `dx_r = sum_s dy_s[r]`.
  """
  values, group = all_reduce.checked_call("all_gather", values, groups)
  return all_reduce.group_all_gather(values, group)


def all_concat(values: Nest, axis: int = 0, groups: Groups = None) -> Nest:
  """The tensors of all replicas, joined along `axis`: `[n, ...] -> [replicas * n, ...]`.

  `dx_r` is replica r's part of `sum_s dy_s`.
  """
  values, group = all_reduce.checked_call(f"all_concat, axis {axis}", values, groups, _has_axis(axis))
  return all_reduce.map_tensors(lambda x: tf.concat(tf.unstack(x), axis),
                              all_reduce.group_all_gather(values, group))


def broadcast(values: Nest, source: int, groups: Groups = None) -> Nest:
  """The tensors of one replica, on all: `y_r = x_source`; source counts within the group.

  `dx_source = sum_s dy_s`, and zero on the others.
  """
  values, group = all_reduce.checked_call(f"broadcast, source {source}", values, groups)
  if not 0 <= source < group.size:
    raise UsageError(f"broadcast: source = {source}: write a replica from 0 to {group.size - 1}")
  is_source = tf.equal(group.position, source)
  kept = all_reduce.map_tensors(lambda x: tf.where(is_source, x, tf.zeros_like(x)), values)
  return all_reduce.group_all_reduce(kept, group)


def reduce_scatter(values: Nest, groups: Groups = None) -> Nest:
  """Each replica's part of the sum over replicas: `[replicas * n, ...] -> [n, ...]`.

  `y_r = (sum_s x_s)[r n : (r + 1) n]`, so every `dx_r` is the `dy_s` of all, joined.
  """
  values, group = all_reduce.checked_call("reduce_scatter", values, groups, _numeric)
  _check_divides("reduce_scatter", values, group)
  def own_part(x: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(x, [group.size, x.shape[0] // group.size, *x.shape[1:]]),
                     group.position)
  return all_reduce.map_tensors(own_part, all_reduce.group_all_reduce(values, group))


def all_to_all(values: Nest, groups: Groups = None) -> Nest:
  """Part s of each replica's tensor goes to replica s: `[replicas * n, ...]`, both ways.

  With x seen as `[replicas, n, ...]`: `y_r[s] = x_s[r]`, so `dx_r[s] = dy_s[r]`.
  """
  values, group = all_reduce.checked_call("all_to_all", values, groups)
  _check_divides("all_to_all", values, group)
  def own_parts(x: tf.Tensor) -> tf.Tensor:
    _, size, *rest = x.shape
    parts = tf.reshape(x, [group.size, group.size, size // group.size, *rest])
    return tf.reshape(tf.gather(parts, group.position, axis=1), [size, *rest])
  return all_reduce.map_tensors(own_parts, all_reduce.group_all_gather(values, group))


def map_gather(items: Sequence[Nest], fn: Callable[[Nest], Nest], groups: Groups = None
               ) -> list[Nest]:
  """`[fn(item) for item in items]` on every replica, each item's work done by one of them.

  Every replica must hold the same items; replica r of a group computes items r, r + size, ...
  Whatever their shapes, all results travel in one collective per dtype. `fn` must be a function of
  tensors without side effects; draw random numbers before, and pass them in.
  With `y = fn(item)`: `ditem = fn'(item)^T sum_s dy_s` on the replica that computed it, else zero.
  """
  results, group = _divide_among_replicas("map_gather", items, fn, groups)
  return all_reduce.group_all_reduce(results, group)


def map_reduce(items: Sequence[Nest], fn: Callable[[Nest], Nest], op: str = "sum",
               groups: Groups = None) -> Nest:
  """The 'sum', 'mean', 'min' or 'max' over items of `fn(item)`, on every replica; see `map_gather`.

  `fn` must return the same structure and shapes for every item.
  """
  reductions = {"min": tf.reduce_min, "max": tf.reduce_max}
  if op not in ("sum", "mean", *reductions):
    raise UsageError(f"map_reduce: op = {op!r}: write 'sum', 'mean', 'min' or 'max'")
  results, group = _divide_among_replicas(f"map_reduce, {op}", items, fn, groups)
  if op in reductions:
    return tree.map_structure(
        lambda *x: None if x[0] is None else reductions[op](tf.stack(x), axis=0),
        *all_reduce.group_all_reduce(results, group))
  scale = len(items) if op == "mean" else 1
  return all_reduce.group_all_reduce(tree.map_structure(
      lambda *x: None if x[0] is None else tf.add_n(x) / scale if op == "mean" else tf.add_n(x),
      *results), group)


# ---- Items divided among replicas ---------------------------------------------------------------


def _divide_among_replicas(call: str, items: Sequence[Nest], fn: Callable[[Nest], Nest],
                           groups: Groups) -> tuple[list[Nest], Group]:
  """`fn` of each item on the replica that owns it, and zeros on the others."""
  items, group = all_reduce.checked_call(call, list(items), groups)
  if not items:
    raise UsageError(f"{call}: there are no items")
  if group.size == 1:
    return [fn(item) for item in items], group
  return [_on_owner(fn, item, tf.equal(group.position, i % group.size))
          for i, item in enumerate(items)], group


def _on_owner(fn: Callable[[Nest], Nest], item: Nest, is_owner: tf.Tensor) -> Nest:
  structure: list[Nest] = []

  def flat_results() -> list[tf.Tensor]:
    structure[:] = [fn(item)]
    return [tf.convert_to_tensor(x) for x in tree.flatten(structure[0]) if x is not None]

  # Traced before it is run, to learn the shapes of what the other replicas do not compute.
  compute = tf.function(flat_results, autograph=False).get_concrete_function()
  zeros = lambda: [tf.zeros(x.shape, x.dtype) for x in compute.structured_outputs]
  results = iter(tf.cond(is_owner, compute, zeros))
  return tree.map_structure(lambda x: None if x is None else next(results), structure[0])


# ---- What a call takes ---------------------------------------------------------------------------


def _numeric(call: str, x: tf.Tensor) -> None:
  if x.dtype == tf.bool:
    raise UsageError(f"{call}: of a bool; cast it to int32, or use all_min (all) or all_max (any)")


def _floating(call: str, x: tf.Tensor) -> None:
  if not x.dtype.is_floating:
    raise UsageError(f"{call}: of {x.dtype.name}, whose mean is no {x.dtype.name}; cast it to "
                     "float32, or use all_sum")


def _has_axis(axis: int) -> Callable[[str, tf.Tensor], None]:
  def check(call: str, x: tf.Tensor) -> None:
    if not -x.shape.rank <= axis < x.shape.rank:
      raise UsageError(f"{call}: a tensor of shape {x.shape} has no such axis")
  return check


def _check_divides(call: str, values: Nest, group: Group) -> None:
  for x in tree.flatten(values):
    if x is not None and (x.shape.rank == 0 or x.shape[0] % group.size):
      raise UsageError(f"{call}: the first axis of a tensor of shape {x.shape} does not divide by "
                       f"the group's {group.size} replicas")
