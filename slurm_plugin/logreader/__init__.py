"""The root log reader: opens a job's log as the job's user, hands over the descriptor, and can do nothing else.

Standard library only, no threads. It reads no byte of any file and runs no program.
"""
