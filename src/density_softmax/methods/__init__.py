"""The methods, one file each. `MethodConfig.members` is their registry."""

from density_softmax.methods.base import Method, MethodConfig, load
from density_softmax.methods.batch_ensemble import BatchEnsemble
from density_softmax.methods.constant_temperature import ConstantTemperature
from density_softmax.methods.ddu import DDU
from density_softmax.methods.deep_ensemble import DeepEnsemble
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic
from density_softmax.methods.due import DUE
from density_softmax.methods.duq import DUQ
from density_softmax.methods.heteroscedastic import Heteroscedastic
from density_softmax.methods.mc_dropout import MCDropout
from density_softmax.methods.mean_field import MeanField
from density_softmax.methods.mimo import MIMO
from density_softmax.methods.natural_posterior_network import NaturalPosteriorNetwork
from density_softmax.methods.posterior_network import PosteriorNetwork
from density_softmax.methods.rank1_bnn import Rank1BNN
from density_softmax.methods.sngp import SNGP
from density_softmax.methods.temperature_scaling import TemperatureScaling

__all__ = [
    "DDU",
    "DUE",
    "DUQ",
    "MIMO",
    "SNGP",
    "BatchEnsemble",
    "ConstantTemperature",
    "DeepEnsemble",
    "DensitySoftmax",
    "Deterministic",
    "Heteroscedastic",
    "MCDropout",
    "MeanField",
    "Method",
    "MethodConfig",
    "NaturalPosteriorNetwork",
    "PosteriorNetwork",
    "Rank1BNN",
    "TemperatureScaling",
    "load",
]
