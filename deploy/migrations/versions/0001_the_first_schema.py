"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('installation',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_installation'))
    )
    op.create_table('node',
    sa.Column('id', sa.String(length=64), nullable=False),
    sa.Column('status', sa.String(length=16), nullable=False),
    sa.Column('capacity', sa.Integer(), nullable=False),
    sa.Column('detail', sa.String(), nullable=True),
    sa.Column('heartbeat_at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("status IN ('READY', 'CORDONED', 'LOST')", name=op.f('ck_node_status')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_node'))
    )
    op.create_table('sandbox_spec',
    sa.Column('id', sa.String(length=256), nullable=False),
    sa.Column('position', sa.Integer(), nullable=False),
    sa.Column('command', sa.Text(), nullable=True),
    sa.Column('env', sa.Text(), nullable=False),
    sa.Column('working_dir', sa.String(length=1024), nullable=False),
    sa.Column('ports', sa.Text(), nullable=False),
    sa.Column('memory_bytes', sa.BigInteger(), nullable=False),
    sa.Column('cpus', sa.Float(), nullable=False),
    sa.Column('pids', sa.Integer(), nullable=False),
    sa.Column('capabilities', sa.Text(), nullable=False),
    sa.Column('runtime', sa.String(length=64), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_sandbox_spec'))
    )
    with op.batch_alter_table('sandbox_spec', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_sandbox_spec_position'), ['position'], unique=False)

    op.create_table('user',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('name', sa.String(length=100), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_user')),
    sa.UniqueConstraint('name', name=op.f('uq_user_name'))
    )
    op.create_table('api_key',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('user_id', sa.String(length=32), nullable=False),
    sa.Column('name', sa.String(length=100), nullable=False),
    sa.Column('prefix', sa.String(length=16), nullable=False),
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['user_id'], ['user.id'], name=op.f('fk_api_key_user_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_api_key')),
    sa.UniqueConstraint('digest', name=op.f('uq_api_key_digest'))
    )
    with op.batch_alter_table('api_key', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_api_key_prefix'), ['prefix'], unique=False)
        batch_op.create_index(batch_op.f('ix_api_key_user_id'), ['user_id'], unique=False)

    op.create_table('provider_token',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('user_id', sa.String(length=32), nullable=False),
    sa.Column('provider', sa.String(length=32), nullable=False),
    sa.Column('ciphertext', sa.String(), nullable=True),
    sa.Column('account_id', sa.String(length=256), nullable=True),
    sa.Column('host', sa.String(length=256), nullable=True),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['user_id'], ['user.id'], name=op.f('fk_provider_token_user_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_provider_token')),
    sa.UniqueConstraint('user_id', 'provider', name=op.f('uq_provider_token_user_id_provider'))
    )
    op.create_table('sandbox',
    sa.Column('lease_owner', sa.String(length=128), nullable=True),
    sa.Column('lease_until', sa.DateTime(timezone=True), nullable=True),
    sa.Column('fence', sa.Integer(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('due_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('owner_id', sa.String(length=32), nullable=True),
    sa.Column('spec_id', sa.String(length=256), nullable=False),
    sa.Column('node_id', sa.String(length=64), nullable=True),
    sa.Column('desired', sa.String(length=16), nullable=False),
    sa.Column('generation', sa.Integer(), nullable=False),
    sa.Column('status', sa.String(length=16), nullable=False),
    sa.Column('observed_generation', sa.Integer(), nullable=False),
    sa.Column('reason', sa.String(length=64), nullable=True),
    sa.Column('detail', sa.String(), nullable=True),
    sa.Column('pause_kind', sa.String(length=16), nullable=True),
    sa.Column('exposed_urls', sa.Text(), nullable=True),
    sa.Column('ready_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('session_key', sa.String(), nullable=False),
    sa.Column('session_key_digest', sa.String(length=64), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("desired IN ('RUNNING', 'PAUSED', 'DELETED')", name=op.f('ck_sandbox_desired')),
    sa.CheckConstraint("status IN ('STARTING', 'RUNNING', 'PAUSED', 'ERROR', 'DELETING', 'DELETED')", name=op.f('ck_sandbox_status')),
    sa.ForeignKeyConstraint(['node_id'], ['node.id'], name=op.f('fk_sandbox_node_id')),
    sa.ForeignKeyConstraint(['owner_id'], ['user.id'], name=op.f('fk_sandbox_owner_id')),
    sa.ForeignKeyConstraint(['spec_id'], ['sandbox_spec.id'], name=op.f('fk_sandbox_spec_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_sandbox')),
    sa.UniqueConstraint('session_key_digest', name=op.f('uq_sandbox_session_key_digest'))
    )
    with op.batch_alter_table('sandbox', schema=None) as batch_op:
        batch_op.create_index('ix_sandbox_due_at', ['due_at'], unique=False, sqlite_where=sa.text('due_at IS NOT NULL'), postgresql_where=sa.text('due_at IS NOT NULL'))
        batch_op.create_index('ix_sandbox_lease_until', ['lease_until'], unique=False, sqlite_where=sa.text('lease_until IS NOT NULL'), postgresql_where=sa.text('lease_until IS NOT NULL'))
        batch_op.create_index(batch_op.f('ix_sandbox_node_id'), ['node_id'], unique=False)
        batch_op.create_index('ix_sandbox_owner_id_created_at_id', ['owner_id', 'created_at', 'id'], unique=False)

    op.create_table('secret',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('user_id', sa.String(length=32), nullable=False),
    sa.Column('name', sa.String(length=256), nullable=False),
    sa.Column('description', sa.String(), nullable=True),
    sa.Column('ciphertext', sa.String(), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['user_id'], ['user.id'], name=op.f('fk_secret_user_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_secret')),
    sa.UniqueConstraint('user_id', 'name', name=op.f('uq_secret_user_id_name'))
    )
    op.create_table('settings',
    sa.Column('user_id', sa.String(length=32), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.Column('sealed', sa.String(), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['user_id'], ['user.id'], name=op.f('fk_settings_user_id')),
    sa.PrimaryKeyConstraint('user_id', name=op.f('pk_settings'))
    )
    op.create_table('conversation',
    sa.Column('lease_owner', sa.String(length=128), nullable=True),
    sa.Column('lease_until', sa.DateTime(timezone=True), nullable=True),
    sa.Column('fence', sa.Integer(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('due_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('owner_id', sa.String(length=32), nullable=False),
    sa.Column('sandbox_id', sa.String(length=32), nullable=False),
    sa.Column('parent_id', sa.String(length=32), nullable=True),
    sa.Column('listed', sa.Boolean(), nullable=False),
    sa.Column('title', sa.String(length=500), nullable=False),
    sa.Column('title_settled', sa.Boolean(), nullable=False),
    sa.Column('public', sa.Boolean(), nullable=True),
    sa.Column('selected_repository', sa.String(length=500), nullable=True),
    sa.Column('selected_branch', sa.String(length=500), nullable=True),
    sa.Column('git_provider', sa.String(length=32), nullable=True),
    sa.Column('trigger', sa.String(length=32), nullable=True),
    sa.Column('pr_number', sa.Text(), nullable=False),
    sa.Column('llm_model', sa.String(length=500), nullable=True),
    sa.Column('agent_kind', sa.String(length=32), nullable=False),
    sa.Column('execution_status', sa.String(length=32), nullable=True),
    sa.Column('execution_status_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('metrics', sa.Text(), nullable=True),
    sa.Column('max_budget', sa.Float(), nullable=True),
    sa.Column('tags', sa.Text(), nullable=False),
    sa.Column('working_dir', sa.String(length=1024), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['user.id'], name=op.f('fk_conversation_owner_id')),
    sa.ForeignKeyConstraint(['sandbox_id'], ['sandbox.id'], name=op.f('fk_conversation_sandbox_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_conversation'))
    )
    with op.batch_alter_table('conversation', schema=None) as batch_op:
        batch_op.create_index('ix_conversation_due_at', ['due_at'], unique=False, sqlite_where=sa.text('due_at IS NOT NULL'), postgresql_where=sa.text('due_at IS NOT NULL'))
        batch_op.create_index('ix_conversation_lease_until', ['lease_until'], unique=False, sqlite_where=sa.text('lease_until IS NOT NULL'), postgresql_where=sa.text('lease_until IS NOT NULL'))
        batch_op.create_index('ix_conversation_owner_id_created_at_id', ['owner_id', 'created_at', 'id'], unique=False)
        batch_op.create_index('ix_conversation_owner_id_title_id', ['owner_id', 'title', 'id'], unique=False)
        batch_op.create_index('ix_conversation_owner_id_updated_at_id', ['owner_id', 'updated_at', 'id'], unique=False)
        batch_op.create_index(batch_op.f('ix_conversation_parent_id'), ['parent_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_conversation_sandbox_id'), ['sandbox_id'], unique=False)

    op.create_table('sandbox_transition',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('sandbox_id', sa.String(length=32), nullable=False),
    sa.Column('from_status', sa.String(length=16), nullable=True),
    sa.Column('to_status', sa.String(length=16), nullable=False),
    sa.Column('reason', sa.String(length=64), nullable=True),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['sandbox_id'], ['sandbox.id'], name=op.f('fk_sandbox_transition_sandbox_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_sandbox_transition'))
    )
    with op.batch_alter_table('sandbox_transition', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_sandbox_transition_sandbox_id'), ['sandbox_id'], unique=False)

    op.create_table('start_task',
    sa.Column('lease_owner', sa.String(length=128), nullable=True),
    sa.Column('lease_until', sa.DateTime(timezone=True), nullable=True),
    sa.Column('fence', sa.Integer(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('due_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('owner_id', sa.String(length=32), nullable=False),
    sa.Column('conversation_id', sa.String(length=32), nullable=False),
    sa.Column('sandbox_id', sa.String(length=32), nullable=True),
    sa.Column('made_sandbox', sa.Boolean(), nullable=False),
    sa.Column('stage', sa.String(length=32), nullable=False),
    sa.Column('reason', sa.String(length=64), nullable=True),
    sa.Column('detail', sa.String(), nullable=True),
    sa.Column('request', sa.Text(), nullable=False),
    sa.Column('secrets', sa.String(), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("stage IN ('WORKING', 'WAITING_FOR_SANDBOX', 'PREPARING_REPOSITORY', 'RUNNING_SETUP_SCRIPT', 'SETTING_UP_GIT_HOOKS', 'SETTING_UP_SKILLS', 'STARTING_CONVERSATION', 'READY', 'ERROR')", name=op.f('ck_start_task_stage')),
    sa.ForeignKeyConstraint(['owner_id'], ['user.id'], name=op.f('fk_start_task_owner_id')),
    sa.ForeignKeyConstraint(['sandbox_id'], ['sandbox.id'], name=op.f('fk_start_task_sandbox_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_start_task')),
    sa.UniqueConstraint('conversation_id', name=op.f('uq_start_task_conversation_id'))
    )
    with op.batch_alter_table('start_task', schema=None) as batch_op:
        batch_op.create_index('ix_start_task_due_at', ['due_at'], unique=False, sqlite_where=sa.text('due_at IS NOT NULL'), postgresql_where=sa.text('due_at IS NOT NULL'))
        batch_op.create_index('ix_start_task_lease_until', ['lease_until'], unique=False, sqlite_where=sa.text('lease_until IS NOT NULL'), postgresql_where=sa.text('lease_until IS NOT NULL'))
        batch_op.create_index('ix_start_task_owner_id_created_at_id', ['owner_id', 'created_at', 'id'], unique=False)
        batch_op.create_index('ix_start_task_owner_id_updated_at_id', ['owner_id', 'updated_at', 'id'], unique=False)
        batch_op.create_index(batch_op.f('ix_start_task_sandbox_id'), ['sandbox_id'], unique=False)

    op.create_table('event',
    sa.Column('seq', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('conversation_id', sa.String(length=32), nullable=False),
    sa.Column('id', sa.String(length=64), nullable=False),
    sa.Column('kind', sa.String(length=64), nullable=False),
    sa.Column('timestamp', sa.DateTime(timezone=True), nullable=False),
    sa.Column('body', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['conversation_id'], ['conversation.id'], name=op.f('fk_event_conversation_id')),
    sa.PrimaryKeyConstraint('seq', name=op.f('pk_event')),
    sa.UniqueConstraint('conversation_id', 'id', name=op.f('uq_event_conversation_id_id'))
    )
    with op.batch_alter_table('event', schema=None) as batch_op:
        batch_op.create_index('ix_event_conversation_id_timestamp_seq', ['conversation_id', 'timestamp', 'seq'], unique=False)

