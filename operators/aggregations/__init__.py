"""Aggregations: their behaviour, one kernel a kind."""

from windrow.operators.aggregations import basic as basic
from windrow.operators.aggregations import collections as collections
from windrow.operators.aggregations import exact as exact
from windrow.operators.aggregations import moments as moments
from windrow.operators.aggregations import ordered as ordered
from windrow.operators.aggregations import retractable as retractable
from windrow.operators.aggregations import sketches as sketches
from windrow.operators.aggregations import user as user
from windrow.operators.aggregations.base import KERNELS as KERNELS
from windrow.operators.aggregations.base import Arguments as Arguments
from windrow.operators.aggregations.base import Failure as Failure
from windrow.operators.aggregations.base import Kernel as Kernel
from windrow.operators.aggregations.base import Parts as Parts
from windrow.operators.aggregations.base import Typed as Typed
from windrow.operators.aggregations.base import concat_parts as concat_parts
from windrow.operators.aggregations.base import lift_where as lift_where
from windrow.operators.aggregations.base import make_kernel as make_kernel
from windrow.operators.aggregations.retractable import RETRACTABLE as RETRACTABLE
from windrow.operators.aggregations.user import evaluate_table_functions as evaluate_table_functions
