"""Files that the client stores on its disk: ledger, pool folders, settings, recordings, debug log."""
