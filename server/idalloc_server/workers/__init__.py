"""Several worker processes; one supervisor starts, replaces and drains them, and sums their counts.

The processes send each other values by name, see ``Pipe``. A worker sends:

* ``ready``, ``serving`` (its address, store and prefix), ``closed``, ``drained``: its progress
* ``start_error``: the reason of a store's failure, if it is one, and the message
* ``counts``, ``checks``: its metrics and the checks of its readiness, each second
* ``candidates``: the ids of sequences that may get their own series of metrics
* ``answer``: to a question, with its number, an error and the result
* ``requires_authentication``: its access file has identities
* ``wants_turn``: a caller changes the node and persists these settings, if any
* ``turn_ended`` and, unless the change failed, ``given``: the new settings
* ``applied``: the revision of the node's settings that it uses

The supervisor sends:

* ``start``: what a worker needs to start; ``serve``, once all are ready
* ``revision``, ``settings``, ``others``: the node's newest settings, and the revisions that the other workers use
* ``turn``: the worker may change the node now
* ``series``: the sequences with their own series; ``ask``: a question, with its number and arguments
* ``other_leases``, ``requires_authentication``, ``reload``
* ``stop``; ``all_closed``, once all are closed; ``exit``: it may exit, ``alone`` or with ``all``
"""
