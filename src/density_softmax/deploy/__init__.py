"""Models leave the laboratory: export, and serving without torch.

`card`, `predictor`, `inputs`, `outputs` and `stream` serve; they import neither torch nor
anything of this package that does. The others export.
"""
