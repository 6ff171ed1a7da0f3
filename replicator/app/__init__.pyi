"""What programs use of the command line."""

from . import config as config
from .experiment import main_of as main_of
from .experiment import run as run
