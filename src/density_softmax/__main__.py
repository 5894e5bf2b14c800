"""`python -m density_softmax`, which torchrun starts: the command line."""

from density_softmax.cli import main

main()
