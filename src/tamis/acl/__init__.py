"""Access control: accounts, what each may do, and the check of every request.

RocketMQ 4.9's *plain* model with its file `plain_acl.yml`. `access` decides, `needs` is the table
of requests, `accounts` and `addresses` say who may what from where, `files` and `keeper` read,
watch and change the files.
"""

from .access import ACL_EXCEPTION, Access, Accounts, Known
from .accounts import Account
from .keeper import AclKeeper

__all__ = ["ACL_EXCEPTION", "Access", "Account", "Accounts", "AclKeeper", "Known"]
