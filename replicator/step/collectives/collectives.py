"""Collectives, for use anywhere in a step and in plain eager code (as one replica).

Each function takes any nest of tensors or numbers, keeps `None`, and runs one collective per dtype,
however many leaves the nest has. All replicas must make the same calls in the same order, with the
same structures and shapes; otherwise tracing raises a `UsageError` that names the call. Make
the calls directly in the step, not in a `tf.while_loop`, `tf.cond` or `tf.function` inside it.
Under 'parameter_server', a step sees only one replica: its own.

`groups` partitions the replicas into lists of equal size, such as `[[0, 1], [2, 3]]`; None is one
group of all replicas. Each group acts as if it were alone. The sums of all groups travel in one
collective, whose size grows with the number of groups.

The loss of a replica is the mean over its own examples, and the optimizer averages gradients over
the replicas. With the gradients below, that average equals the gradient of the same program on one
replica. In the equations, r is a replica, s runs over the replicas of r's group, and dy is the
incoming gradient.

Results have the structure and dtypes of the arguments, with one exception: sums of 8- and 16-bit
integers are int32, and sums of uint32 are int64, to avoid overflow. float16 and bfloat16 are summed
in float32.
"""

from collections.abc import Callable, Sequence

from replicator.errors import UsageError
from replicator.step.collectives import packing, validation
from replicator.step.collectives.validation import Group, Groups
from replicator.step.nest import Nest, map_tensors

import tensorflow as tf
import tree


def all_sum(values: Nest, groups: Groups = None) -> Nest:
  """Sums tensors over replicas, `[...] -> [...]`: `y_r = sum_s x_s`, so `dx_r = sum_s dy_s`.

  As in NumPy, sums of small integers have a wider dtype: 8- and 16-bit integers become int32, and
  uint32 becomes int64.

  Raises:
    UsageError: a tensor is bool.
  """
  values, group = validation.checked_call("all_sum", values, groups, _numeric)
  return packing.group_sum(_widened(values), group)


def all_mean(values: Nest, groups: Groups = None) -> Nest:
  """Averages tensors over replicas, `[...] -> [...]`: `y_r = mean_s x_s`, so `dx_r = mean_s dy_s`.

  Raises:
    UsageError: a tensor is not floating-point.
  """
  values, group = validation.checked_call("all_mean", values, groups, _floating)
  return packing.group_sum(values, group, divisor=group.size)


def all_min(values: Nest, groups: Groups = None) -> Nest:
  """Computes the elementwise minimum over replicas, `[...] -> [...]`; for bools, logical AND.

  `dx_r = [x_r = y] / m sum_s dy_s`, where m is the number of replicas that have the minimum.
  """
  return _extreme("all_min", values, groups, tf.reduce_min, tf.reduce_all)


def all_max(values: Nest, groups: Groups = None) -> Nest:
  """Computes the elementwise maximum over replicas, `[...] -> [...]`; for bools, logical OR.

  `dx_r = [x_r = y] / m sum_s dy_s`, where m is the number of replicas that have the maximum.
  """
  return _extreme("all_max", values, groups, tf.reduce_max, tf.reduce_any)


def _extreme(call: str, values: Nest, groups: Groups, of_numbers: Callable, of_bools: Callable
             ) -> Nest:
  values, group = validation.checked_call(call, values, groups)
  return map_tensors(
      lambda x: (of_bools if x.dtype == tf.bool else of_numbers)(x, axis=0),
      packing.group_gather(values, group))


def all_gather(values: Nest, groups: Groups = None) -> Nest:
  """Stacks the tensors of all replicas, in the group's order: `[...] -> [replicas, ...]`.

  `y_r[s] = x_s`, so `dx_r = sum_s dy_s[r]`.
  """
  values, group = validation.checked_call("all_gather", values, groups)
  return packing.group_gather(values, group)


def all_concat(values: Nest, axis: int = 0, groups: Groups = None) -> Nest:
  """Concatenates the tensors of all replicas along `axis`: `[n, ...] -> [replicas * n, ...]`.

  `dx_r` is replica r's part of `sum_s dy_s`. n may differ between replicas, and may be unknown
  until the step runs, as after `tf.boolean_mask`; one more collective then exchanges the lengths.
  A negative `axis` counts from the end.

  Raises:
    UsageError: a tensor has no such axis.
  """
  def has_axis(call: str, x: tf.Tensor) -> None:
    if not -x.shape.rank <= axis < x.shape.rank:
      raise UsageError(f"{call}: a tensor of shape {x.shape} has no such axis")

  values, group = validation.checked_call(
      f"all_concat, axis {axis}", values, groups, has_axis, free_axis=axis)
  if validation.lengths_may_differ(values, axis):
    return packing.group_concat(values, axis, group)
  return map_tensors(lambda x: _joined(x, axis), packing.group_gather(values, group))


def _joined(x: tf.Tensor, axis: int) -> tf.Tensor:
  """Concatenates stacked tensors along one of their own axes."""
  if axis % (x.shape.rank - 1) == 0 and x.shape.is_fully_defined():
    return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])
  return tf.concat(tf.unstack(x), axis)


def broadcast(values: Nest, source: int, groups: Groups = None) -> Nest:
  """Copies tensors from the replica at position `source` of each group to the whole group.

  `[...] -> [...]`: `y_r = x_source`, so `dx_source = sum_s dy_s`, and dx is zero on the others.

  Raises:
    UsageError: `source` is not a position in the group.
  """
  values, group = validation.checked_call(f"broadcast, source {source}", values, groups)
  if not 0 <= source < group.size:
    raise UsageError(f"broadcast: source = {source}: must be a replica from 0 to {group.size - 1}")
  is_source = tf.equal(group.position, source)
  kept = map_tensors(lambda x: tf.where(is_source, x, tf.zeros_like(x)), values)
  return packing.group_sum(kept, group)


def reduce_scatter(values: Nest, groups: Groups = None) -> Nest:
  """Returns this replica's part of the sum over replicas: `[replicas * n, ...] -> [n, ...]`.

  `y_r = (sum_s x_s)[r n : (r + 1) n]`, so every `dx_r` is the concatenation of all `dy_s`. Small
  integers are widened as in `all_sum`.

  Raises:
    UsageError: a tensor is bool, or its first axis is not divisible by the group size.
  """
  values, group = validation.checked_call("reduce_scatter", values, groups, _numeric)
  return packing.group_scatter(_divided("reduce_scatter", _widened(values), group), group)


def gather_parts(values: Nest) -> Nest:
  """Gathers all parts of values that are sharded over the replicas: `[n] -> [replicas, n]`.

  Like `all_gather`, but hooks learn that n shrinks as replicas are added; see `Transfer.parts`.
  """
  values, _ = validation.checked_call("gather_parts", values, None)
  return packing.gather_parts(values)


def all_to_all(values: Nest, groups: Groups = None) -> Nest:
  """Sends part s of each replica's tensor to replica s: `[replicas * n, ...]`, in and out.

  With x and y viewed as `[replicas, n, ...]`: `y_r[s] = x_s[r]`, so `dx_r[s] = dy_s[r]`.

  Raises:
    UsageError: the first axis of a tensor is not divisible by the group size.
  """
  values, group = validation.checked_call("all_to_all", values, groups)
  received = packing.group_exchange(_divided("all_to_all", values, group), group)
  return map_tensors(lambda x: tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]]), received)


def _divided(call: str, values: Nest, group: Group) -> Nest:
  """Splits tensors into a part for each replica of the group: `[size * n, ...] -> [size, n, ...]`.
  """
  def parts(x: tf.Tensor) -> tf.Tensor:
    if x.shape.rank == 0 or x.shape[0] % group.size:
      raise UsageError(f"{call}: the first axis of a tensor of shape {x.shape} does not divide "
                       f"evenly among the group's {group.size} replicas")
    return tf.reshape(x, [group.size, x.shape[0] // group.size, *x.shape[1:]])
  return map_tensors(parts, values)


# ---- Items divided among the replicas -----------------------------------------------------------


def map_gather(items: Sequence[Nest], fn: Callable[[Nest], Nest], groups: Groups = None
               ) -> list[Nest]:
  """Computes `[fn(item) for item in items]` on all replicas, dividing the items among them.

  Replica r of a group computes items r, r + size, ... All results travel in one collective per
  dtype, whatever their shapes. With `y = fn(item)`, the gradient is
  `ditem = fn'(item)^T sum_s dy_s` on the replica that computed the item, and zero on the others.

  Args:
    items: nests of tensors, the same on every replica.
    fn: a function of tensors without side effects. Draw random numbers before the call, and pass
      them in.

  Raises:
    UsageError: there are no items.
  """
  results, group = _divide_among_replicas("map_gather", items, fn, groups)
  return packing.group_sum(results, group)


def map_reduce(items: Sequence[Nest], fn: Callable[[Nest], Nest], op: str = "sum",
               groups: Groups = None) -> Nest:
  """Reduces `fn(item)` over all items, divided among the replicas; see `map_gather`.

  Args:
    items: nests of tensors, the same on every replica.
    fn: as for `map_gather`; it returns the same structure and shapes for every item.
    op: 'sum', 'mean', 'min' or 'max'. Sums of small integers are wider; see `all_sum`.

  Raises:
    UsageError: `op` is unknown, or there are no items.
  """
  added = lambda xs: tf.add_n([validation.as_added(x) for x in xs])
  reductions = {"sum": added, "mean": lambda x: added(x) / len(items),
                "min": lambda x: tf.reduce_min(x, axis=0),
                "max": lambda x: tf.reduce_max(x, axis=0)}
  if op not in reductions:
    raise UsageError(f"map_reduce: op = {op!r}: must be 'sum', 'mean', 'min' or 'max'")
  results, group = _divide_among_replicas(f"map_reduce, {op}", items, fn, groups)
  if op in ("min", "max"):
    results = packing.group_sum(results, group)
  else:
    results = _widened(results)
  reduced = tree.map_structure(lambda *x: None if x[0] is None else reductions[op](x), *results)
  if op in ("min", "max"):
    return reduced
  # The mean of integers is floating-point.
  return tree.map_structure(
      lambda y, x: tf.cast(y, x.dtype) if y is not None and x.dtype.is_floating else y,
      packing.group_sum(reduced, group), results[0])


def _divide_among_replicas(call: str, items: Sequence[Nest], fn: Callable[[Nest], Nest],
                           groups: Groups) -> tuple[list[Nest], Group]:
  """Computes `fn(item)` for each item on the replica that owns it; the others get zeros."""
  items, group = validation.checked_call(call, list(items), groups)
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

  # Traced first: replicas that do not own the item need the shapes of its results.
  compute = tf.function(flat_results, autograph=False).get_concrete_function()
  zeros = lambda: [tf.zeros(x.shape, x.dtype) for x in compute.structured_outputs]
  results = iter(tf.cond(is_owner, compute, zeros))
  return tree.map_structure(lambda x: None if x is None else next(results), structure[0])


# ---- Dtypes -------------------------------------------------------------------------------------


def _numeric(call: str, x: tf.Tensor) -> None:
  if x.dtype == tf.bool:
    raise UsageError(f"{call}: a tensor is bool; cast it to int32, or use all_min (all) or all_max "
                     "(any)")


def _floating(call: str, x: tf.Tensor) -> None:
  if not x.dtype.is_floating:
    raise UsageError(f"{call}: a tensor is {x.dtype.name}, but its mean may not be; cast it to "
                     f"float32{'' if x.dtype == tf.bool else ', or use all_sum'}")


def _widened(values: Nest) -> Nest:
  """Casts integers to the dtype in which collectives move and sum them."""
  return map_tensors(lambda x: validation.as_added(x) if x.dtype.is_integer else x, values)
