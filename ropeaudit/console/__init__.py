"""Parts of the command line that several commands share: options, files, delivery, gates."""
