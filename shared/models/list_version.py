"""The version of each user's lists."""

from sqlmodel import Field, SQLModel

# In place of an owner: the version of what all lists depend on, the deadlines of the specs.
ALL_OWNERS = "*"


class ListVersion(SQLModel, table=True):
    """A text that differs after each transaction that changes anything in the owner's lists.

    The database's triggers write it at the end of the transaction, for every writer of the rows (decision 25). It is
    random, not a counter: a database restored from a backup never repeats a version.
    """

    __tablename__ = "list_version"

    owner_id: str = Field(primary_key=True, max_length=32)
    version: str = Field(max_length=32)
