"""Where operators come from: the table, plug-ins, files of users, recordings, drawn problems."""
