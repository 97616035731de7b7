"""Commands; exceptions become exit codes; the only room that prints."""
