"""Lipschitz constants of encoders: penalties, constraints and bounds."""
