"""Values as gin text. Python shows an infinite float as `inf`, where gin reads `1e999`."""

import pprint
import re
import sys
from typing import Any


class _Printer(pprint.PrettyPrinter):
  def format(self, value: Any, *how: Any) -> tuple[str, bool, bool]:
    text, *rest = super().format(value, *how)
    is_number = isinstance(value, float | complex)
    return (re.sub(r"\binf", "1e999", text) if is_number else text), *rest  # type: ignore[return-value]


def literal(value: Any, width: int = sys.maxsize) -> str:
  """The gin text of a value, in lines of that width; the `repr` of what gin cannot write.

  A dict keeps its order, such as that of wrappers of environments, which says which is inside.
  """
  return _Printer(width=width, sort_dicts=False).pformat(value)
