"""Profiles of training: reading them, finding causes, and showing both."""
