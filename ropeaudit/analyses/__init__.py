"""Questions asked of a setting or of records: one file each."""
