"""What the commands share: options, values, files, progress, gates."""
