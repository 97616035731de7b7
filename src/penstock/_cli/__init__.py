"""Commands; exceptions become exit codes; the only package that prints."""
