"""Grids of runs: methods × seeds × variants, on this machine or on a cluster.

Every cell is a process of its own, which is given the command line of a single run. A cell that
crashes or runs out of memory takes no other with it, a cell may span several processes itself,
and whatever a cell did can be repeated by hand.
"""
