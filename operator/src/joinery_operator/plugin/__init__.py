"""`kubectl joinery`: a thin layer over kubectl, so that it works with any setup of kubectl.

It needs no engine. Commands on a job's state run in the job's driver pod, which has the secrets. If no driver runs,
they run in a pod of their own.
"""
