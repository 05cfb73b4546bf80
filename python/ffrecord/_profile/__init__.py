"""What profiles of training say: reading them, finding causes, and showing both."""
