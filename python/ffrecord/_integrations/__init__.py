"""Record files in frameworks of others; their modules in the package are the doors."""
