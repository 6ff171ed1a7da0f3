"""Items that the replicas divide among themselves: each is computed by one replica of a group."""

from collections.abc import Callable, Sequence

import tensorflow as tf
import tree

from replicator.collectives import packing, validation
from replicator.collectives.collectives import widened
from replicator.collectives.validation import Group, Groups
from replicator.errors import UsageError
from replicator.step.nest import Nest


def map_gather(items: Sequence[Nest], fn: Callable[[Nest], Nest], groups: Groups = None
               ) -> list[Nest]:
  """`[fn(item) for item in items]` on every replica, each item computed by one replica.

  Replica r of a group computes the items r, r + size, ... All results travel in one collective per
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
  """Reduces `fn(item)` over all items, on every replica; see `map_gather`.

  Args:
    items: nests of tensors, the same on every replica.
    fn: as for `map_gather`; it returns the same structure and shapes for every item.
    op: 'sum', 'mean', 'min' or 'max'. Sums of small integers are wider, see `all_sum`.

  Raises:
    UsageError: the op is unknown, or there are no items.
  """
  reductions = {"sum": tf.add_n, "mean": lambda x: tf.add_n(x) / len(items),
                "min": lambda x: tf.reduce_min(x, axis=0),
                "max": lambda x: tf.reduce_max(x, axis=0)}
  if op not in reductions:
    raise UsageError(f"map_reduce: op = {op!r}: write 'sum', 'mean', 'min' or 'max'")
  results, group = _divide_among_replicas(f"map_reduce, {op}", items, fn, groups)
  if op in ("min", "max"):
    results = packing.group_sum(results, group)
  else:
    results = widened(results)
  reduced = tree.map_structure(lambda *x: None if x[0] is None else reductions[op](x), *results)
  return reduced if op in ("min", "max") else packing.group_sum(reduced, group)


def _divide_among_replicas(call: str, items: Sequence[Nest], fn: Callable[[Nest], Nest],
                           groups: Groups) -> tuple[list[Nest], Group]:
  """`fn(item)` for each item on the replica that owns it, and zeros on the others."""
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

  # Traced first, for the shapes of the results: the replicas that do not own the item need them.
  compute = tf.function(flat_results, autograph=False).get_concrete_function()
  zeros = lambda: [tf.zeros(x.shape, x.dtype) for x in compute.structured_outputs]
  results = iter(tf.cond(is_owner, compute, zeros))
  return tree.map_structure(lambda x: None if x is None else next(results), structure[0])
