"""The one exception for what the user has to put right: printed as a line, never as a traceback."""


class Refused(Exception):
    pass
