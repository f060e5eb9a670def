"""Mutations of our own code, each an attack or an accident that somebody could write, and the test that notices it.

The text of each occurs once in its file; a test holds that, so that no mutation outlives the code it was made for.
"""

from dataclasses import dataclass

__all__ = ["MUTATIONS", "Mutation"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file.

    Args:
        name: the area, and what the change breaks.
        file: below ``evidence_archive/``.
        old, new: what stands there once, and what takes its place.
        killed_by: the test that fails then; with the parameters of one case, or without them for all cases.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: str


_ENVELOPE = "sealing/envelope.py"
_KEYRING = "sealing/keyring.py"
_MERKLE = "proof/merkle.py"
_CHECKPOINT = "proof/checkpoint.py"
_SQL = "store/sql.py"
_STATEMENTS = "store/statements.py"
_SQLITE = "store/sqlite.py"
_ROOTS = "keys/roots.py"
_WRAPPED = ("level", "deployment", "org", "scope_id", "child", "generation", "kek_version")

_SEALING = (
    Mutation(
        "sealing: an envelope is not bound to its session",
        _ENVELOPE,
        "return ce(deployment, org, session_id)",
        "return ce(deployment, org)",
        "tests/test_envelope.py::test_an_envelope_of_another_org_session_result_or_tool_does_not_open",
    ),
    Mutation(
        "sealing: an envelope is not bound to its org",
        _ENVELOPE,
        "return ce(deployment, org, session_id)",
        "return ce(deployment, session_id)",
        "tests/test_envelope.py::test_an_envelope_of_another_org_session_result_or_tool_does_not_open",
    ),
    Mutation(
        "sealing: an envelope is not bound to its deployment",
        _ENVELOPE,
        "return ce(deployment, org, session_id)",
        "return ce(org, session_id)",
        "tests/test_envelope.py::test_an_envelope_of_another_org_session_result_or_tool_does_not_open",
    ),
    *(
        Mutation(
            f"sealing: an envelope is not bound to its {field}",
            _ENVELOPE,
            f"                slot.{field},\n",
            "",
            "tests/test_envelope.py::test_an_envelope_of_another_org_session_result_or_tool_does_not_open",
        )
        for field in ("result_id", "tool_call_id", "tool_name", "kind", "media_type", "observed_at_us")
    ),
    Mutation(
        "sealing: an envelope is not bound to its size",
        _ENVELOPE,
        "                sealed_size,\n            ),\n",
        "            ),\n",
        "tests/test_envelope.py::test_a_golden_envelope_opens_for_ever",
    ),
    Mutation(
        "sealing: an envelope is not bound to its header",
        _ENVELOPE,
        "            header,\n            _owner",
        "            _owner",
        "tests/test_envelope.py::test_a_golden_envelope_opens_for_ever",
    ),
    Mutation(
        "sealing: flags and reserved bytes are not looked at",
        _ENVELOPE,
        "    header = bytes(envelope[:_HEADER_BYTES])\n"
        "    if len(original_id) != _ID_BYTES or header != _HEAD + original_id + dek_id:",
        "    header = bytes(envelope[:_HEADER_BYTES])\n"
        "    if len(original_id) != _ID_BYTES or header[:5] + header[8:] != _HEAD[:5] + original_id + dek_id:",
        "tests/test_envelope.py::test_an_unknown_suite_flag_or_reserved_byte_is_a_newer_version",
    ),
    Mutation(
        "sealing: magic and suite are not looked at",
        _ENVELOPE,
        "    header = bytes(envelope[:_HEADER_BYTES])\n"
        "    if len(original_id) != _ID_BYTES or header != _HEAD + original_id + dek_id:",
        "    header = bytes(envelope[:_HEADER_BYTES])\n"
        "    if len(original_id) != _ID_BYTES or header[5:] != _HEAD[5:] + original_id + dek_id:",
        "tests/test_envelope.py::test_an_unknown_suite_flag_or_reserved_byte_is_a_newer_version",
    ),
    Mutation(
        "sealing: the ids in a header are believed",
        _ENVELOPE,
        "    header = bytes(envelope[:_HEADER_BYTES])\n"
        "    if len(original_id) != _ID_BYTES or header != _HEAD + original_id + dek_id:",
        "    header = bytes(envelope[:_HEADER_BYTES])\n    if header[:8] != _HEAD:",
        "tests/test_envelope.py::test_a_swapped_key_or_id_does_not_open",
    ),
    Mutation(
        "sealing: a reader of pieces does not look at the header",
        _ENVELOPE,
        "    header = source.exactly(_HEADER_BYTES)\n"
        "    if len(original_id) != _ID_BYTES or header != _HEAD + original_id + dek_id:",
        "    header = source.exactly(_HEADER_BYTES)\n    if len(header) != _HEADER_BYTES:",
        "tests/test_envelope.py::test_an_unknown_suite_flag_or_reserved_byte_is_a_newer_version",
    ),
    Mutation(
        "sealing: chunks are released before the cipher is finished",
        _ENVELOPE,
        "    except (InvalidTag, ValueError) as error:\n        raise SealBrokenError(_BROKEN) from error\n\n\n"
        "def _unpacked",
        "    except (InvalidTag, ValueError):\n        return\n\n\ndef _unpacked",
        "tests/test_envelope.py::test_no_bit_flip_truncation_or_extension_of_an_envelope_opens",
    ),
    Mutation(
        "sealing: the digest is not compared",
        _ENVELOPE,
        'if size != b"%d" % len(data) or not hmac.compare_digest(sha256(data).digest(), digest):',
        'if size != b"%d" % len(data):',
        "tests/test_envelope.py::test_metadata_that_does_not_fit_the_content_does_not_open",
    ),
    Mutation(
        "sealing: the size is not compared",
        _ENVELOPE,
        'if size != b"%d" % len(data) or not hmac.compare_digest(sha256(data).digest(), digest):',
        "if not hmac.compare_digest(sha256(data).digest(), digest):",
        "tests/test_envelope.py::test_metadata_that_does_not_fit_the_content_does_not_open",
    ),
    Mutation(
        "sealing: a reader of pieces does not compare the digest",
        _ENVELOPE,
        'if size != b"%d" % length or not hmac.compare_digest(hashing.digest(), digest):',
        'if size != b"%d" % length:',
        "tests/test_envelope.py::test_metadata_that_does_not_fit_the_content_does_not_open",
    ),
    Mutation(
        "sealing: a digest is compared in a time that tells of it",
        _ENVELOPE,
        'if size != b"%d" % len(data) or not hmac.compare_digest(sha256(data).digest(), digest):',
        'if size != b"%d" % len(data) or sha256(data).digest() != digest:',
        "tests/test_killers.py::test_secrets_are_compared_in_constant_time[envelope]",
    ),
    Mutation(
        "sealing: the stored size is not compared",
        _ENVELOPE,
        '    if stored_size != b"%d" % len(data):\n        raise SealBrokenError(_BROKEN)\n',
        "",
        "tests/test_envelope.py::test_metadata_that_does_not_fit_the_content_does_not_open",
    ),
    Mutation(
        "sealing: decompression is bounded by what the frame says alone",
        _ENVELOPE,
        'if declared > ORIGINAL_BYTES_MAX or b"%d" % declared != size:',
        "if declared > ORIGINAL_BYTES_MAX:",
        "tests/test_envelope.py::test_a_decompression_bomb_or_a_lying_frame_does_not_open",
    ),
    Mutation(
        "sealing: a reader of pieces decompresses whatever a frame says",
        _ENVELOPE,
        'if b"%d" % zstandard.frame_content_size(head) != size:',
        "if False:",
        "tests/test_envelope.py::test_a_decompression_bomb_or_a_lying_frame_does_not_open",
    ),
    Mutation(
        "sealing: a reader of pieces hands out more than the format holds",
        _ENVELOPE,
        "if length > ORIGINAL_BYTES_MAX:",
        "if False:",
        "tests/test_envelope.py::test_a_frame_that_holds_more_than_it_declares_hands_out_no_more_than_the_format_holds",
    ),
    Mutation(
        "sealing: a second frame behind the first is let pass",
        _ENVELOPE,
        "allow_extra_data=False",
        "allow_extra_data=True",
        "tests/test_envelope.py::test_a_decompression_bomb_or_a_lying_frame_does_not_open",
    ),
    Mutation(
        "sealing: a reader of pieces lets a second frame behind the first pass",
        _ENVELOPE,
        "if unpacker.eof and (head or unpacker.unused_data):",
        "if unpacker.eof and (head and unpacker.unused_data):",
        "tests/test_envelope.py::test_a_decompression_bomb_or_a_lying_frame_does_not_open",
    ),
    Mutation(
        "sealing: what the cipher made is not opened again",
        _ENVELOPE,
        "if _decrypt(memoryview(envelope)[_HEADER_BYTES:], dek, context) != plaintext or (",
        "if (",
        "tests/test_envelope.py::test_a_cipher_that_lies_is_found_before_anything_is_stored",
    ),
    Mutation(
        "sealing: what the compressor made is not opened again",
        _ENVELOPE,
        'stored is not data and _unpack(stored, b"%d" % len(data)) != data',
        "False",
        "tests/test_envelope.py::test_a_compressor_that_lies_is_found_before_anything_is_stored",
    ),
    Mutation(
        "sealing: an envelope of any length is decrypted",
        _ENVELOPE,
        " or len(envelope) != envelope_bytes(sealed_size):",
        ":",
        "tests/test_envelope.py::test_an_envelope_of_another_length_never_reaches_the_cipher",
    ),
    Mutation(
        "sealing: metadata may claim to end behind the plaintext",
        _ENVELOPE,
        "    if meta_end > sealed_size:\n",
        "    if meta_end < 0:\n",
        "tests/test_killers.py::test_metadata_that_claims_to_end_behind_the_plaintext_does_not_open",
    ),
    Mutation(
        "sealing: metadata of a newer version is read as if it were ours",
        _ENVELOPE,
        "if fields and fields[0] != _VERSION:",
        "if not fields:",
        "tests/test_envelope.py::test_metadata_of_a_newer_version_is_refused_as_such",
    ),
    Mutation(
        "sealing: fields of a context run into each other",
        _ENVELOPE,
        "return ce(deployment, org, session_id)",
        'return b"".join((deployment, org.encode(), session_id.encode()))',
        "tests/test_envelope.py::test_fields_that_run_into_each_other_are_told_apart",
    ),
    Mutation(
        "sealing: an encoding has no lengths",
        "model.py",
        '        out.append(_LENGTHS[size] if size <= FIELD_BYTES_MAX else size.to_bytes(4, "big"))\n',
        "",
        "tests/test_model.py::test_joining_without_lengths_would_confuse_fields_which_this_encoding_does_not",
    ),
    Mutation(
        "sealing: an absent field is an empty one",
        "model.py",
        "            out.append(_ABSENT)\n",
        "            out.append(_LENGTHS[0])\n",
        "tests/test_envelope.py::test_an_absent_kind_is_not_an_empty_kind",
    ),
    Mutation(
        "sealing: a length that runs past the end is let pass",
        "model.py",
        "if len(head) < 4 or at + size > len(data):",
        "if len(head) < 4:",
        "tests/test_model.py::test_a_cut_encoding_is_refused",
    ),
    *(
        Mutation(
            f"sealing: a wrap is not bound to its {field}",
            _KEYRING,
            "return _WRAP + ce(level, deployment, org, scope_id, child, generation, kek_version)",
            f"return _WRAP + ce({', '.join(one for one in _WRAPPED if one != field)})",
            "tests/test_keyring.py::test_every_place_has_a_context_of_its_own",
        )
        for field in ("level", "deployment", "org", "scope_id", "child", "generation", "kek_version")
    ),
    *(
        Mutation(
            f"sealing: a closed key is not bound to its {field}",
            _KEYRING,
            "+ ce(original_id, dek_id, result_id)",
            f"+ ce({', '.join(one for one in ('original_id', 'dek_id', 'result_id') if one != field)})",
            f"tests/test_keyring.py::test_the_key_and_note_of_another_original_do_not_open[{field}]",
        )
        for field in ("original_id", "dek_id", "result_id")
    ),
    Mutation(
        "sealing: a closed key is not bound to its session",
        _KEYRING,
        'return _WRAP + ce("original", deployment, org, scope_id)',
        'return _WRAP + ce("original", deployment, org)',
        "tests/test_keyring.py::test_the_key_and_note_of_another_original_do_not_open[scope_id]",
    ),
    Mutation(
        "sealing: a closed key can pass for a wrapped one",
        _KEYRING,
        'return _WRAP + ce("original", deployment, org, scope_id)',
        "return _WRAP + ce(deployment, org, scope_id)",
        "tests/test_keyring.py::test_a_golden_key_and_note_open_for_ever",
    ),
    Mutation(
        "sealing: a content tag needs no key",
        _KEYRING,
        'return hmac.digest(key, prefix + digest, "sha256")',
        'return hmac.digest(b"", prefix + digest, "sha256")',
        "tests/test_keyring.py::test_a_content_tag_depends_on_key_content_and_kind",
    ),
    Mutation(
        "sealing: a content tag is equal for text and parts",
        _KEYRING,
        'return hmac.digest(key, prefix + digest, "sha256")',
        'return hmac.digest(key, digest, "sha256")',
        "tests/test_keyring.py::test_a_content_tag_depends_on_key_content_and_kind",
    ),
    Mutation(
        "sealing: a request tag does not name its call",
        _KEYRING,
        "fields: list[bytes] = [call_id]",
        "fields: list[bytes] = []",
        "tests/test_keyring.py::test_a_request_tag_tells_different_batches_apart",
    ),
    Mutation(
        "sealing: two purposes share a key",
        _KEYRING,
        'signing=derive(aux_key, b"evidence-archive/v1/checkpoint")',
        'signing=derive(aux_key, b"evidence-archive/v1/row")',
        "tests/test_keyring.py::test_every_purpose_has_a_key_of_its_own",
    ),
    Mutation(
        "sealing: a reason is kept as it was given",
        "vault.py",
        'sealed = wrap(self._keys.audit, reason.encode("utf-8", "surrogatepass"), self._reason_context(seq))',
        'sealed = reason.encode("utf-8", "surrogatepass")',
        "tests/test_session_restore.py::test_the_reason_is_in_the_log_sealed_and_nowhere_else[sqlite]",
    ),
)

_ROWS = (
    Mutation(
        "rows: the last column is left out of the seal",
        _KEYRING,
        "    for value in fields:\n        if value is None:\n            kinds",
        "    for value in list(fields)[:-1]:\n        if value is None:\n            kinds",
        "tests/test_keyring.py::test_no_change_of_value_type_order_or_table_keeps_a_row_seal",
    ),
    Mutation(
        "rows: the org is left out of the seal",
        _KEYRING,
        "    for value in fields:\n        if value is None:\n            kinds",
        "    for value in list(fields)[1:]:\n        if value is None:\n            kinds",
        "tests/test_keyring.py::test_no_change_of_value_type_order_or_table_keeps_a_row_seal",
    ),
    Mutation(
        "rows: types are left out of the seal",
        _KEYRING,
        'ce(table, "".join(kinds))',
        "ce(table)",
        "tests/test_keyring.py::test_no_change_of_value_type_order_or_table_keeps_a_row_seal",
    ),
    Mutation(
        "rows: the table is left out of the seal",
        _KEYRING,
        'ce(table, "".join(kinds))',
        'ce("".join(kinds))',
        "tests/test_keyring.py::test_no_change_of_value_type_order_or_table_keeps_a_row_seal",
    ),
    Mutation(
        "rows: lengths are left out of the seal",
        _KEYRING,
        '        out.append(_LENGTHS[size] if size < len(_LENGTHS) else size.to_bytes(4, "big"))\n',
        "",
        "tests/test_killers.py::test_values_that_run_into_each_other_have_another_row_seal",
    ),
    Mutation(
        "rows: an empty seal is taken for an old form",
        _KEYRING,
        "if not isinstance(seal, bytes | memoryview) or not hmac.compare_digest(expected, bytes(seal)):",
        "if not isinstance(seal, bytes | memoryview) or (seal and not hmac.compare_digest(expected, bytes(seal))):",
        "tests/test_keyring.py::test_a_row_seal_is_checked",
    ),
    Mutation(
        "rows: a seal is compared in a time that tells of it",
        _KEYRING,
        "if not isinstance(seal, bytes | memoryview) or not hmac.compare_digest(expected, bytes(seal)):",
        "if not isinstance(seal, bytes | memoryview) or expected != bytes(seal):",
        "tests/test_killers.py::test_secrets_are_compared_in_constant_time[row seal]",
    ),
    Mutation(
        "rows: types are not looked at where the key is inside the row",
        "store/rows.py",
        "if type(value) not in types:",
        "if False:",
        "tests/test_killers.py::test_a_row_of_other_types_is_refused_before_its_key_is_known",
    ),
    *(
        Mutation(
            f"rows: the seal is not checked in {path}",
            _SQL,
            f"{shape}.opened(self._row_key, {values})",
            f"{shape}.unchecked({values})",
            f"tests/test_killers.py::test_a_row_with_another_seal_is_refused_on_every_way_to_read_it[{path}]",
        )
        for path, shape, values in (
            ("the session of a find", "q.SESSION", "row[:scope_at]"),
            ("the key of a find", "q.SCOPE", "row[scope_at:result_at]"),
            ("the result of a find", "q.RESULT", "row[result_at:]"),
            ("custody", "q.CUSTODY", "found[at:]"),
        )
    ),
    *(
        Mutation(
            f"rows: the seal is not checked in {path}",
            _SQL,
            f"{before}{shape}.opened(self._row_key, row){after}",
            f"{before}{shape}.unchecked(row){after}",
            f"tests/test_killers.py::test_a_row_with_another_seal_is_refused_on_every_way_to_read_it[{path}]",
        )
        for path, before, shape, after in (
            ("session", "None if row is None else ", "q.SESSION", ""),
            ("sessions", "[", "q.SESSION", ""),
            ("scope", "None if row is None else ", "q.SCOPE", ""),
            ("scopes", "[", "q.SCOPE", ""),
            ("results", "", "q.RESULT", " for row in rows]"),
            ("postings", "[", "q.POSTING", ""),
            ("named", "None if row is None else ", "q.RESULT", ""),
            ("expired", "", "q.RESULT", " for row in self._all(q.SELECT_EXPIRED"),
            ("object", "None if row is None else ", "q.OBJECT", ""),
            ("lapsed objects", "[", "q.OBJECT", ""),
            ("batch", "", "q.BATCH", ""),
            ("holds", "", "q.HOLD", ""),
            ("shreds", "", "q.SHRED", ""),
            ("checkpoint", "None if row is None else ", "q.CHECKPOINT", ""),
            ("checkpoints", "[", "q.CHECKPOINT", ""),
            ("head", "", "q.HEAD", ""),
            ("org row", "", "q.ORG", ""),
        )
    ),
    Mutation(
        "rows: an org's row is believed whatever its seal",
        _SQL,
        "if stored is None or q.ORG.opened(row_key, stored) != row:",
        "if stored is None:",
        "tests/test_store.py::test_an_org_whose_row_carries_another_seal_is_not_opened[sqlite-kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk]",
    ),
)

_AUDIT = (
    Mutation(
        "audit: what was restored is released although the log did not take it",
        "restoring.py",
        "        self._vault.transact(release)\n",
        "        with suppress(EvidenceArchiveError):\n            self._vault.transact(release)\n",
        "tests/test_vault.py::test_a_grant_that_the_log_does_not_take_releases_nothing[sqlite]",
    ),
    Mutation(
        "audit: a file gets the original before the log has the grant",
        "archive.py",
        "            restoring.granted(principal, found, part=None, reason=reason)\n"
        "            restoring.released_to(principal, found, partial(_write, file))\n",
        "            restoring.released_to(principal, found, partial(_write, file))\n"
        "            restoring.granted(principal, found, part=None, reason=reason)\n",
        "tests/test_killers.py::test_a_file_gets_nothing_before_the_log_has_the_grant",
    ),
    Mutation(
        "audit: a denial is not logged",
        "restoring.py",
        "        self.denied(principal, name, number, also=None if shredded else also)\n",
        "",
        "tests/test_vault.py::test_every_grant_and_denial_is_in_the_log_with_its_place_and_its_policy[sqlite]",
    ),
    Mutation(
        "audit: what changed between permission and grant is released",
        "restoring.py",
        "if again is None or held is None or (again[2], held[2]) != (found.row, found.origin):",
        "if again is None or held is None:",
        "tests/test_vault.py::test_a_result_that_changes_between_permission_and_grant_is_not_released[sqlite]",
    ),
    Mutation(
        "audit: the head is not locked, only its last entry looked at",
        _SQL,
        "head = reader.head(lock=True)",
        "head = reader.head()",
        "tests/test_killers.py::test_the_head_of_the_log_is_locked_before_its_end_is_looked_at",
    ),
    Mutation(
        "audit: the end of the log is looked at before the head is locked",
        _SQL,
        "    head = reader.head(lock=True)\n    tail = reader.leaves(max(head.size - 1, 0), 2)\n",
        "    tail = reader.leaves(max(reader.head().size - 1, 0), 2)\n    head = reader.head(lock=True)\n",
        "tests/test_killers.py::test_the_head_of_the_log_is_locked_before_its_end_is_looked_at",
    ),
    Mutation(
        "audit: the last entry is not held against the head",
        _SQL,
        "if len(tail) != min(head.size, 1) or found != head.last_leaf_hash:",
        "if len(tail) != min(head.size, 1):",
        "tests/test_store.py::"
        "test_nobody_appends_to_a_log_whose_end_is_not_what_the_head_names"
        "[sqlite-UPDATE audit_leaves SET leaf = x'00' WHERE seq = 2]",
    ),
    Mutation(
        "audit: an entry behind the head is overlooked",
        _SQL,
        "if len(tail) != min(head.size, 1) or found != head.last_leaf_hash:",
        "if tail and leaf_hash(tail[0][1]) != head.last_leaf_hash:",
        "tests/test_store.py::"
        "test_nobody_appends_to_a_log_whose_end_is_not_what_the_head_names"
        "[sqlite-INSERT INTO audit_leaves VALUES ('north-clinic', 3, x'00')]",
    ),
    Mutation(
        "audit: an entry is not counted in the tree",
        _SQL,
        "            frontier.append(head.last_leaf_hash)\n",
        "",
        "tests/test_store.py::test_an_org_begins_with_its_first_leaves_and_a_second_creation_changes_nothing[sqlite]",
    ),
    Mutation(
        "audit: entries are appended without the lock",
        _SQL,
        'raise StoreError("This transaction did not lock the audit log.")\n',
        "self._head = self.head()\n",
        "tests/test_store.py::test_a_transaction_that_did_not_lock_the_log_may_not_append_to_it[sqlite]",
    ),
    Mutation(
        "audit: an empty log is intact",
        "vault.py",
        '        if head.size == 0:\n            findings.append("The log is empty: nothing was checked.")\n',
        "",
        "tests/test_vault.py::test_an_empty_log_is_not_intact_because_nothing_was_checked[sqlite]",
    ),
    Mutation(
        "audit: a report does not mind a gap",
        "vault.py",
        "if seq != frontier.size:",
        "if seq < frontier.size:",
        "tests/test_vault.py::test_the_report_says_how_many_of_how_many_are_there[sqlite]",
    ),
    Mutation(
        "audit: a report does not hold the entries against the head",
        "vault.py",
        "elif frontier.to_bytes() != head.frontier or (last is not None and last != head.last_leaf_hash):",
        "elif last is not None and last != head.last_leaf_hash:",
        "tests/test_killers.py::test_an_entry_rewritten_in_our_own_form_is_found_by_the_report",
    ),
    Mutation(
        "audit: an entry of another org or place passes",
        "vault.py",
        "if (entry.org, entry.seq) != (self.org, seq):",
        "if entry.seq < 0:",
        "tests/test_vault.py::test_entries_that_are_no_entries_or_belong_elsewhere_are_each_found[sqlite]",
    ),
    Mutation(
        "audit: an entry in another form than ours is read",
        "proof/leaf.py",
        "if _encode(leaf) == data:",
        "if _encode(leaf):",
        "tests/test_proof.py::test_what_this_library_would_not_have_written_does_not_decode",
    ),
)

_STORE = (
    Mutation(
        "store: a commit in WAL mode is not synced",
        _SQLITE,
        'return ("wal", 2) if fixed',
        'return ("wal", 1) if fixed',
        "tests/test_engine.py::test_the_journal_mode_follows_the_linked_version",
    ),
    Mutation(
        "store: a version of SQLite that may lose commits runs in WAL mode",
        _SQLITE,
        "fixed = version >= (3, 51, 3)",
        "fixed = version >= (3, 51, 2)",
        "tests/test_engine.py::test_the_journal_mode_follows_the_linked_version",
    ),
    Mutation(
        "store: what was deleted stays in the file",
        _SQLITE,
        'self._set(connection, "secure_delete", 1)',
        'self._set(connection, "secure_delete", 0)',
        "tests/test_engine.py::test_the_pragmas_that_durability_needs_hold_on_a_real_connection",
    ),
    Mutation(
        "store: a pragma that does not take is not noticed",
        _SQLITE,
        'if connection.execute(f"PRAGMA {pragma}").fetchone() != (value,):',
        "if False:",
        "tests/test_engine.py::test_a_pragma_that_does_not_take_is_refused",
    ),
    Mutation(
        "store: a writer takes its lock at its first write",
        _SQLITE,
        'yield from self._transaction(connection, "BEGIN IMMEDIATE")',
        'yield from self._transaction(connection, "BEGIN")',
        "tests/test_killers.py::test_a_writer_has_the_lock_before_it_reads",
    ),
    Mutation(
        "store: a database is readable by others",
        _SQLITE,
        "os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600",
        "os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644",
        "tests/test_engine.py::test_the_database_and_its_journal_are_readable_by_their_owner_only",
    ),
    Mutation(
        "store: a commit into a file that was replaced is acknowledged",
        _SQLITE,
        'if connection.info.get("identity") != self._identity():',
        "if False:",
        "tests/test_engine.py::test_a_commit_into_a_file_that_was_replaced_meanwhile_is_not_acknowledged",
    ),
    Mutation(
        "store: envelopes are not compared when they are read back",
        _SQL,
        "if written.pop(original_id, None) != envelope:",
        "if written.pop(original_id, None) is None and not envelope:",
        "tests/test_store.py::"
        "test_a_database_that_returns_other_bytes_than_were_written_archives_nothing[sqlite-one bit]",
    ),
    Mutation(
        "store: envelopes are not read back",
        _SQL,
        "        for at in range(0, len(originals), q.READ_BACK_ROWS):\n",
        "        for at in ():\n",
        "tests/test_store.py::"
        "test_a_database_that_returns_other_bytes_than_were_written_archives_nothing[sqlite-left out]",
    ),
    Mutation(
        "store: PostgreSQL does not lock the head of the log",
        _STATEMENTS,
        "LOCK_HEAD = selecting(t.AUDIT_HEADS, lock=True)",
        "LOCK_HEAD = selecting(t.AUDIT_HEADS)",
        "tests/test_killers.py::test_what_a_writer_relies_on_is_locked_on_postgresql",
    ),
    Mutation(
        "store: PostgreSQL does not lock the session",
        _STATEMENTS,
        'LOCK_SESSION = selecting(t.SESSIONS, "session_id", lock=True)',
        'LOCK_SESSION = selecting(t.SESSIONS, "session_id")',
        "tests/test_killers.py::test_what_a_writer_relies_on_is_locked_on_postgresql",
    ),
    Mutation(
        "store: PostgreSQL does not lock what a restore found",
        _STATEMENTS,
        "LOCK_FOUND = Statement(_FOUND.with_for_update(), ",
        "LOCK_FOUND = Statement(_FOUND, ",
        "tests/test_killers.py::test_what_a_writer_relies_on_is_locked_on_postgresql",
    ),
    Mutation(
        "store: a writer reads sessions without their lock",
        _SQL,
        "_session_statement, _find_statement = q.LOCK_SESSION, q.LOCK_FOUND",
        "_session_statement, _find_statement = q.SELECT_SESSION, q.FIND",
        "tests/test_killers.py::test_what_a_writer_relies_on_is_locked_on_postgresql",
    ),
    Mutation(
        "store: rows are found without their org",
        _STATEMENTS,
        'where(columns.org == bindparam("org"), *(columns[name]',
        'where((columns.org == bindparam("org")) | columns.org.is_not(None), *(columns[name]',
        "tests/test_store.py::test_nothing_of_one_org_is_found_through_another[sqlite]",
    ),
    Mutation(
        "store: results are found without their org",
        _STATEMENTS,
        '.where(_S.org == bindparam("org"), _S.session_id == bindparam("session_id"),',
        '.where(_S.session_id == bindparam("session_id"),',
        "tests/test_killers.py::test_every_statement_names_the_org",
    ),
    Mutation(
        "store: a walled table's owner is above the wall",
        "store/migrations/walls.py",
        '    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")\n',
        "",
        "tests/test_killers.py::test_a_wall_is_there_for_reading_and_writing_and_for_the_owner_too",
    ),
    Mutation(
        "store: a table is not walled",
        "store/migrations/walls.py",
        '    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")\n',
        "",
        "tests/test_killers.py::test_a_wall_is_there_for_reading_and_writing_and_for_the_owner_too",
    ),
    Mutation(
        "store: a wall lets rows of other orgs be written",
        "store/migrations/walls.py",
        "\"WITH CHECK (org = current_setting('evidence_archive.org', true))\"",
        '"WITH CHECK (true)"',
        "tests/test_killers.py::test_a_wall_is_there_for_reading_and_writing_and_for_the_owner_too",
    ),
    Mutation(
        "store: an update of a row that is not there is no error",
        _SQL,
        'if changed != len(rows):\n                raise StoreError(f"{changed}',
        'if changed > len(rows):\n                raise StoreError(f"{changed}',
        "tests/test_store.py::test_an_update_of_a_row_that_is_not_there_is_an_error_that_says_how_many[sqlite]",
    ),
    Mutation(
        "store: an org whose row was removed looks as if it never was",
        _SQL,
        "if row is None and reader._one(q.SELECT_HEAD) is not None:",
        "if row is None and reader is None:",
        "tests/test_store.py::test_an_org_made_between_two_looks_does_not_pass_for_a_removed_one[sqlite]",
    ),
    Mutation(
        "store: an org whose row was removed is made anew",
        _SQL,
        "if writer._one(q.SELECT_HEAD) is not None:",
        "if writer is None:",
        "tests/test_store.py::test_an_org_row_that_was_removed_is_not_made_anew[sqlite]",
    ),
    Mutation(
        "store: a newer schema is opened",
        "store/schema.py",
        "if revision is not None and revision not in _KNOWN:",
        "if revision is None:",
        "tests/test_schema.py::test_a_database_that_a_newer_version_wrote_is_refused_and_left_alone",
    ),
    Mutation(
        "store: a batch commits although its session changed",
        "archiving.py",
        "if row.version != self._records.row.version:",
        "if row.version < self._records.row.version:",
        "tests/test_session_archive.py::test_two_processes_that_race_for_a_result_archive_it_once[sqlite]",
    ),
    Mutation(
        "store: a batch commits although its objects were collected",
        "envelopes.py",
        "if any(writer.object(row.original_id) != row for row in rows):",
        "if any(writer.object(row.original_id) is None for row in rows):",
        "tests/test_large_originals.py::"
        "test_a_batch_whose_intents_were_collected_after_they_were_read_back_is_not_committed[sqlite]",
    ),
    Mutation(
        "store: the collector asks nobody who needs an object",
        "envelopes.py",
        "return named is None or named.state == SHREDDED",
        "return True",
        "tests/test_killers.py::test_an_object_is_free_only_where_nothing_needs_it",
    ),
    Mutation(
        "store: an envelope is looked into before its bytes are compared",
        "envelopes.py",
        "if sha256(envelope).digest() != origin.envelope_sha256:",
        "if False:",
        "tests/test_killers.py::test_changed_bytes_never_pass_for_those_of_a_newer_version",
    ),
)

_ACCESS = (
    Mutation(
        "access: no opening opens to all",
        "access.py",
        "return bool(openings) and all(",
        "return all(",
        "tests/test_access.py::test_no_opening_at_all_opens_to_nobody",
    ),
    Mutation(
        "access: one opening of several is enough",
        "access.py",
        "return bool(openings) and all(",
        "return bool(openings) and any(",
        "tests/test_access.py::test_every_opening_must_let_the_principal_through",
    ),
    Mutation(
        "access: being the owner opens what names roles",
        "access.py",
        "        subject_is_owner if opening is None else not opening.isdisjoint(roles) for opening in openings",
        "        subject_is_owner or not (opening or roles).isdisjoint(roles) for opening in openings",
        "tests/test_access.py::test_being_the_owner_is_not_enough_where_roles_are_named",
    ),
    Mutation(
        "access: a role opens what is its owner's",
        "access.py",
        "subject_is_owner if opening is None else not opening",
        "(subject_is_owner or bool(roles)) if opening is None else not opening",
        "tests/test_access.py::test_a_role_is_not_enough_where_the_owner_is_meant",
    ),
    Mutation(
        "access: another org's principal gets in",
        "access.py",
        "return same_org and opened",
        "return opened",
        "tests/test_access.py::test_another_org_gets_a_no_whatever_its_roles",
    ),
    Mutation(
        "access: orgs are compared without regard to case",
        "access.py",
        "same_org = principal.org == org",
        "same_org = principal.org.casefold() == org.casefold()",
        "tests/test_access.py::test_orgs_are_compared_exactly",
    ),
    Mutation(
        "access: the owner is compared without regard to case",
        "access.py",
        "may_restore(principal.subject == owner, ",
        "may_restore(principal.subject.casefold() == owner.casefold(), ",
        "tests/test_access.py::test_subjects_are_compared_exactly",
    ),
    Mutation(
        "access: a copy has no rules of its origin",
        "restoring.py",
        "self._vault.may_restore(principal, owner, row, origin)",
        "self._vault.may_restore(principal, owner, row)",
        "tests/test_access_path.py::test_the_rules_for_an_original_hold_for_the_copy_of_it_too[sqlite]",
    ),
    Mutation(
        "access: a copy has the rules of its origin alone",
        "restoring.py",
        "self._vault.may_restore(principal, owner, row, origin)",
        "self._vault.may_restore(principal, owner, origin)",
        "tests/test_killers.py::test_a_copy_opens_only_where_its_own_rules_let_it_too",
    ),
    Mutation(
        "access: a session opens to any subject",
        "archive.py",
        "    if row.subject != principal.subject and sharing.isdisjoint(principal.roles):\n",
        "    if not principal.subject and sharing.isdisjoint(principal.roles):\n",
        "tests/test_archive_door.py::test_the_first_subject_owns_a_session_and_another_is_denied_and_logged[sqlite]",
    ),
    Mutation(
        "access: a listing shows what its reader may not restore",
        "archive.py",
        "if owner or vault.may_restore(principal, session.subject, row, origin):",
        "if True:",
        "tests/test_archive_door.py::test_the_owner_lists_everything_an_auditor_what_rules_open_and_others_nothing[sqlite]",
    ),
    Mutation(
        "access: an error on the way to a no becomes a yes",
        "restoring.py",
        "                if found is not None and held is None:\n"
        '                    raise SealBrokenError("What a copy was taken from is gone: its row was removed.")\n',
        "                if found is not None and held is None:\n                    held = found\n",
        "tests/test_vault.py::test_a_copy_whose_origin_was_removed_is_damage_and_not_unknown[sqlite]",
    ),
    Mutation(
        "access: a session sets aside what it could not restore",
        "records.py",
        "if not may or (row.origin is not None and not self.vault.may_restore(self.principal, owner, row)):",
        "if row.origin is not None and not self.vault.may_restore(self.principal, owner, row):",
        "tests/test_session_archive.py::test_what_the_session_could_not_restore_it_may_not_set_aside[sqlite-roles0-protected]",
    ),
    Mutation(
        "access: anybody has custody",
        "custody.py",
        "if vault.policy.custodians.isdisjoint(principal.roles):",
        "if not vault.policy.custodians:",
        "tests/test_disposal.py::test_only_a_role_that_the_policy_names_gets_in_and_a_refusal_is_in_the_log[sqlite]",
    ),
    Mutation(
        "access: a refused custodian is not in the log",
        "custody.py",
        "            vault.transact(lambda writer: writer.append(denied))\n",
        "",
        "tests/test_disposal.py::test_only_a_role_that_the_policy_names_gets_in_and_a_refusal_is_in_the_log[sqlite]",
    ),
)

_ERRORS = (
    Mutation(
        "errors: a no has a cause that tells why",
        "restoring.py",
        "        raise NotAvailableError\n\n    def opened(",
        '        raise NotAvailableError from (None if found is None else PermissionError("roles"))\n\n'
        "    def opened(",
        "tests/test_access_path.py::test_every_no_to_a_restore_is_the_same_no[sqlite]",
    ),
    Mutation(
        "errors: a no says what it is that is forbidden",
        "restoring.py",
        "        raise NotAvailableError\n\n    def opened(",
        "        error = NotAvailableError()\n"
        "        if found is not None:\n"
        '            error.args = ("Not available: this is forbidden.",)\n'
        "        raise error\n\n    def opened(",
        "tests/test_access_path.py::test_every_no_to_a_restore_is_the_same_no[sqlite]",
    ),
    Mutation(
        "errors: a no to nothing costs fewer statements",
        "restoring.py",
        "held = reader.find(name, number if copied is None else copied)",
        "held = None if found is None else reader.find(name, number if copied is None else copied)",
        "tests/test_access_path.py::test_every_no_to_a_restore_is_the_same_no[sqlite]",
    ),
    Mutation(
        "errors: a listing of nothing costs fewer statements",
        "archive.py",
        'found = reader.results(b"" if session is None else session.scope_id, -1)',
        "found = [] if session is None else reader.results(session.scope_id, -1)",
        "tests/test_access_path.py::test_every_no_to_a_listing_is_the_same_no[sqlite-nowhere]",
    ),
)

_POLICY = (
    Mutation(
        "policy: never loses to an allow that stands before it",
        "policy.py",
        'key=lambda rule: rule.decision.effect != "never")',
        "key=lambda rule: 0)",
        "tests/test_policy.py::test_the_strictest_matching_rule_wins_whatever_the_order",
    ),
    Mutation(
        "policy: of two names the milder decision counts",
        "policy.py",
        'key=lambda decision: decision.effect != "never"',
        'key=lambda decision: decision.effect == "never"',
        "tests/test_policy.py::test_a_result_that_names_another_tool_gets_the_stricter_decision",
    ),
    Mutation(
        "policy: a result without a name is decided for nothing",
        "policy.py",
        'return facts.tools or ("",)',
        "return facts.tools",
        "tests/test_policy.py::test_a_result_without_any_name_is_decided_for_the_empty_one",
    ),
    Mutation(
        "policy: a text that is not at hand acquits",
        "policy.py",
        "if self.found is not None and facts.text is not None and not self.found(facts.text):",
        "if self.found is not None and (facts.text is None or not self.found(facts.text)):",
        "tests/test_policy.py::test_a_text_that_is_not_at_hand_counts_as_matched",
    ),
    Mutation(
        "policy: a text too long to search acquits",
        "policy.py",
        "return len(text) > CONTENT_CHARS_MAX or engine",
        "return len(text) <= CONTENT_CHARS_MAX and engine",
        "tests/test_policy.py::test_a_text_too_long_to_search_counts_as_matched_by_a_pattern_but_not_by_a_literal",
    ),
    Mutation(
        "policy: a text that the engine refuses counts as no match",
        "policy.py",
        'engine.isinstance_python(text.encode("utf-8", "replace").decode())',
        "engine.isinstance_python(text)",
        "tests/test_policy.py::test_a_pattern_is_found_anywhere_in_the_text",
    ),
    Mutation(
        "policy: one sensitivity that is open opens them all",
        "policy.py",
        "one_by_one = [frozenset((label,)) for label in sorted(facts.sensitivity)] or [frozenset[str]()]",
        "one_by_one = [facts.sensitivity]",
        "tests/test_policy.py::test_every_sensitivity_of_a_result_must_be_satisfied",
    ),
    Mutation(
        "policy: the rules of one name open both",
        "policy.py",
        "for only in one_by_one for tool in _names_of(facts))",
        "for only in one_by_one for tool in _names_of(facts)[:1])",
        "tests/test_policy.py::test_both_names_of_a_result_must_be_satisfied",
    ),
    Mutation(
        "policy: the shortest retention counts",
        "policy.py",
        "        return max(\n            (\n                days",
        "        return min(\n            (\n                days",
        "tests/test_policy.py::test_the_longest_retention_counts",
    ),
    Mutation(
        "policy: a key that nobody knows is ignored",
        "policy_file.py",
        'extra="forbid"',
        'extra="ignore"',
        "tests/test_policy.py::test_an_unknown_key_is_refused_in_every_table",
    ),
    Mutation(
        "policy: a limit has no upper bound",
        "policy_file.py",
        "default=getattr(Limits(), name), ge=low, le=high",
        "default=getattr(Limits(), name), ge=low",
        "tests/test_policy.py::test_limits_are_those_of_the_vocabulary_with_the_bounds_around_the_defaults",
    ),
    Mutation(
        "policy: a file may hold any number of tables",
        "policy_file.py",
        "default=[], max_length=1000",
        "default=[], max_length=1001",
        "tests/test_policy.py::test_a_table_occurs_at_most_a_thousand_times",
    ),
    Mutation(
        "policy: what may never be archived is archived",
        "records.py",
        '        if decision.effect == "never":\n            return decision.rule_id, decision.reason\n',
        "",
        "tests/test_session_archive.py::test_what_the_policy_forbids_is_protected_and_the_rule_is_named[sqlite]",
    ),
)

_KEYS = (
    Mutation(
        "keys: instead of a missing version the current one is tried",
        _ROOTS,
        "        except KeyError:\n            pass\n",
        "        except KeyError:\n            return self._roots[self._current]\n",
        "tests/test_keys.py::test_a_missing_version_is_an_error_and_never_the_current_one",
    ),
    Mutation(
        "keys: a file that all can read is accepted",
        _ROOTS,
        "(0o037 if allow_group_read else 0o077)",
        "(0o037 if allow_group_read else 0o033)",
        "tests/test_keys.py::test_a_key_file_that_others_can_read_or_change_is_refused_and_says_chmod",
    ),
    Mutation(
        "keys: a link is followed",
        _ROOTS,
        "        flags |= os.O_NOFOLLOW\n",
        "        flags |= 0\n",
        "tests/test_keys.py::test_a_link_to_a_key_file_is_refused_unless_it_is_a_mounted_secret",
    ),
    Mutation(
        "keys: a file of another user is accepted",
        _ROOTS,
        "if status.st_uid != os.geteuid() and not (allow_group_read and status.st_uid == 0):",
        "if status.st_uid < 0:",
        "tests/test_keys.py::test_a_key_file_of_another_user_is_refused",
    ),
    Mutation(
        "keys: a key file is written over",
        _ROOTS,
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW",
        "tests/test_keys.py::test_new_keys_never_overwrite_what_is_there",
    ),
    Mutation(
        "keys: a text in disguise is accepted as a key",
        _ROOTS,
        "if all(0x20 <= byte < 0x7F for byte in root) or len(set(root)) < _DISTINCT_BYTES_MIN:",
        "if not root:",
        "tests/test_keys.py::test_anything_but_a_key_file_is_refused_and_no_error_shows_what_was_read",
    ),
    Mutation(
        "keys: a new key file is not synced",
        _ROOTS,
        "        os.fsync(target)\n\n\ndef _sync_folder",
        "\n\ndef _sync_folder",
        "tests/test_keys.py::test_new_keys_are_durable_file_and_folder",
    ),
    Mutation(
        "keys: all orgs share a key",
        _ROOTS,
        "return keyring.derive(self._root(version), _KEK + ce(org, version))",
        "return keyring.derive(self._root(version), _KEK + ce(version))",
        "tests/test_keys.py::test_a_wrapped_key_unwraps_under_its_org_version_and_context_only",
    ),
    Mutation(
        "keys: a version that was retired elsewhere lives on here",
        _ROOTS,
        "if (seen := self._look()) is not None and seen != self._seen:",
        "if (seen := self._look()) is not None and self._seen is None:",
        "tests/test_keys_lifecycle.py::test_a_version_that_was_retired_elsewhere_is_gone_here_at_once",
    ),
    Mutation(
        "keys: the current version is taken out of its file",
        _ROOTS,
        "    if version == current:\n",
        "    if version > current:\n",
        "tests/test_keys_lifecycle.py::test_texts_gain_and_lose_versions_as_files_do",
    ),
    Mutation(
        "keys: fingerprints are not compared",
        "keys/__init__.py",
        "    if found != fingerprint:\n",
        "    if not found:\n",
        "tests/test_keys.py::test_a_wrong_key_and_damaged_data_are_different_errors",
    ),
    Mutation(
        "keys: what was wrapped is not unwrapped again",
        "keys/__init__.py",
        "if not wrapped or not hmac.compare_digest(again, key):",
        "if not wrapped:",
        "tests/test_rekeying.py::"
        "test_a_version_that_does_not_unwrap_is_found_before_anything_is_wrapped_under_it[sqlite]",
    ),
    Mutation(
        "keys: the check value of a service's answer is not compared",
        "keys/service.py",
        "if len(plaintext) == 2 * KEY_BYTES and hmac.compare_digest(plaintext[KEY_BYTES:], _check(key, place)):",
        "if len(plaintext) == 2 * KEY_BYTES:",
        "tests/test_keys_command.py::test_a_program_that_binds_nothing_is_noticed",
    ),
    Mutation(
        "keys: a key that a service wrapped may be in another form",
        "keys/service.py",
        "if sealed is None or ce(self._FORM, version, sealed) != wrapped:",
        "if sealed is None:",
        "tests/test_killers.py::test_a_key_that_a_service_wrapped_has_one_form_and_no_other",
    ),
)

_CUSTODY = (
    Mutation(
        "custody: a shred of an original does not ask",
        "disposal.py",
        "            self._allowed(\n                writer, [root], lambda hold: hold.scope_id == root.scope_id"
        " and hold.number in (None, root.number)\n            )\n",
        "",
        "tests/test_disposal.py::"
        "test_a_hold_stops_every_way_to_destroy_and_nothing_of_the_group_is_touched[on2-original]",
    ),
    Mutation(
        "custody: a hold on a session is ignored for its originals",
        "disposal.py",
        "hold.number in (None, root.number)",
        "hold.number == root.number",
        "tests/test_disposal.py::"
        "test_a_hold_stops_every_way_to_destroy_and_nothing_of_the_group_is_touched[on1-original]",
    ),
    Mutation(
        "custody: a hold on the org is ignored for its sessions",
        "disposal.py",
        "(hold.scope_id is None or touches(hold))",
        "touches(hold)",
        "tests/test_disposal.py::"
        "test_a_hold_stops_every_way_to_destroy_and_nothing_of_the_group_is_touched[on0-session]",
    ),
    Mutation(
        "custody: a hold on an original is ignored for its session",
        "disposal.py",
        "lambda hold: hold.scope_id == scope.scope_id)",
        "lambda hold: hold.scope_id == scope.scope_id and hold.number is None)",
        "tests/test_disposal.py::"
        "test_a_hold_stops_every_way_to_destroy_and_nothing_of_the_group_is_touched[on2-session]",
    ),
    Mutation(
        "custody: holds are asked for before the transaction",
        "disposal.py",
        "        shred_id = self._vault.around.entropy(16)\n\n"
        "        def shredded(writer: Writer) -> tuple[Shred, bytes]:\n",
        "        shred_id = self._vault.around.entropy(16)\n"
        "        with self._vault.store.reading(self._vault.store_wait_ms) as reader:\n"
        "            before = reader.holds()\n\n"
        "        def shredded(writer: Writer) -> tuple[Shred, bytes]:\n"
        "            writer.holds = lambda: before\n",
        "tests/test_killers.py::test_a_hold_that_is_placed_while_a_shred_waits_is_met[session]",
    ),
    Mutation(
        "custody: a hold that was released holds on",
        "disposal.py",
        "if hold.released_at_us is None and (hold.scope_id is None",
        "if (hold.scope_id is None",
        "tests/test_disposal.py::"
        "test_a_hold_stops_every_way_to_destroy_and_nothing_of_the_group_is_touched[on0-original]",
    ),
    Mutation(
        "custody: a retention is shortened",
        "disposal.py",
        "if row.retention_until_us is not None and until_us < row.retention_until_us:",
        "if row.retention_until_us is not None and until_us < 0:",
        "tests/test_disposal.py::test_what_is_to_be_kept_is_kept_and_a_retention_is_never_shortened[sqlite]",
    ),
    Mutation(
        "custody: a retention that is not over does not keep",
        "disposal.py",
        "if row.retention_until_us is not None and row.retention_until_us > now_us:",
        "if row.retention_until_us is not None and row.retention_until_us < 0:",
        "tests/test_disposal.py::test_what_is_to_be_kept_is_kept_and_a_retention_is_never_shortened[sqlite]",
    ),
    Mutation(
        "custody: looking at what is due destroys it",
        "disposal.py",
        "        if dry_run:\n",
        "        if not due:\n",
        "tests/test_disposal.py::test_what_is_to_be_kept_is_kept_and_a_retention_is_never_shortened[sqlite]",
    ),
    Mutation(
        "custody: a shred keeps the sealed key",
        "disposal.py",
        "return replace(row, state=SHREDDED, closed=None, part=None, version=version)",
        "return replace(row, state=SHREDDED, part=None, version=version)",
        "tests/test_disposal.py::test_no_wrapped_key_of_what_was_shredded_is_left_in_the_files[original]",
    ),
    Mutation(
        "custody: a shred keeps the session's key",
        "disposal.py",
        "vault.around.entropy(32), old.tag)",
        "old.key, old.tag)",
        "tests/test_killers.py::test_a_key_from_before_a_shred_opens_nothing_after_it",
    ),
    Mutation(
        "custody: a shredded session keeps its wrapped key",
        "disposal.py",
        '        writer.update_scopes([replace(scope, wrapped=b"")])\n',
        "",
        "tests/test_disposal.py::test_no_wrapped_key_of_what_was_shredded_is_left_in_the_files[session]",
    ),
    Mutation(
        "custody: a shredded org keeps its wrapped key",
        "disposal.py",
        '            writer.update_org(replace(org, aux_wrapped=b""))\n',
        "",
        "tests/test_disposal.py::test_no_wrapped_key_of_what_was_shredded_is_left_in_the_files[org]",
    ),
    Mutation(
        "custody: a process that holds keys goes on in a shredded org",
        "disposal.py",
        "vault.counted(writer, kek_floor=KEK_VERSION_MAX)",
        "vault.counted(writer, kek_floor=0)",
        "tests/test_disposal.py::"
        "test_a_shredded_org_is_gone_and_a_process_that_has_its_keys_archives_nothing_more[sqlite]",
    ),
    Mutation(
        "custody: envelopes outlive their shred",
        "disposal.py",
        "        writer.destroy_originals(ids)\n",
        "",
        "tests/test_disposal.py::test_no_wrapped_key_of_what_was_shredded_is_left_in_the_files[session]",
    ),
    Mutation(
        "custody: a tombstone is not shown where the message still holds the original",
        "session.py",
        "shredded = row.state == SHREDDED",
        "shredded = False",
        "tests/test_disposal.py::test_a_shredded_original_is_gone_with_its_copies_and_the_session_goes_on[sqlite]",
    ),
    Mutation(
        "custody: a shred is complete while an older version is there",
        "disposal.py",
        "any(one <= kek_version for one in keys.versions(self._vault.org))",
        "any(one == kek_version for one in keys.versions(self._vault.org))",
        "tests/test_killers.py::test_a_shred_is_pending_while_any_version_that_wrapped_it_is_there",
    ),
    Mutation(
        "custody: an older wrapped key is believed",
        "vault.py",
        "row.kek_version < (self.kek_floor or 0):",
        "row.kek_version < 0:",
        "tests/test_rekeying.py::test_an_older_wrapped_key_that_is_put_back_is_refused[sqlite]",
    ),
    Mutation(
        "custody: an older key of the org is believed",
        "vault.py",
        "    if floor is not None and row.kek_version < floor:\n",
        "    if floor is not None and row.kek_version < 0:\n",
        "tests/test_rekeying.py::test_an_older_key_of_the_org_that_is_put_back_is_refused[sqlite]",
    ),
    Mutation(
        "custody: the floor is not raised",
        "rekeying.py",
        " and self._raise_floor(version):",
        ":",
        "tests/test_rekeying.py::test_a_rotation_wraps_everything_anew_and_touches_no_original[sqlite]",
    ),
    Mutation(
        "custody: the floor rises without another look",
        "rekeying.py",
        "if writer.org_row().kek_version < version or writer.scopes_below(version):",
        "if writer.org_row().kek_version < version:",
        "tests/test_rekeying.py::"
        "test_a_session_opened_between_the_census_and_the_floor_is_wrapped_anew_and_never_locked_out[sqlite-rotate]",
    ),
    Mutation(
        "custody: an older row of what is in keeping is believed",
        _SQL,
        "if (0 if row is None else row.version) != self._custody_version(head):",
        "if False:",
        "tests/test_disposal.py::"
        "test_what_an_org_has_in_keeping_is_not_believed_where_it_was_removed_or_put_back[sqlite]",
    ),
    Mutation(
        "custody: holds are not counted",
        "disposal.py",
        "if len(holds) != (0 if kept is None else kept.holds):",
        "if False:",
        "tests/test_disposal.py::test_a_hold_that_was_removed_from_the_database_holds_on[sqlite]",
    ),
    Mutation(
        "custody: what nobody knows the floor of is opened",
        "vault.py",
        "if row.wrapped and self.kek_floor is None:",
        "if False:",
        "tests/test_disposal.py::"
        "test_what_an_org_has_in_keeping_is_not_believed_where_it_was_removed_or_put_back[sqlite]",
    ),
    Mutation(
        "custody: a refused shred leaves no entry",
        "disposal.py",
        "        except (HeldError, RetentionError) as error:\n",
        "        except ZeroDivisionError as error:\n",
        "tests/test_disposal.py::test_a_shred_that_is_refused_is_in_the_log[sqlite]",
    ),
    Mutation(
        "audit: the store's own heads can be given up",
        "proving.py",
        "read = _continued(reader, own + rest)",
        "read = _continued(reader, rest)",
        "tests/test_proving.py::test_a_log_rewritten_after_it_was_anchored_anew_is_not_signed_again[sqlite]",
    ),
    Mutation(
        "audit: what anchors know is given up before the log is looked at",
        "proving.py",
        "            _continued(reader, self._own(reader))  # a log",
        "            # a log",
        "tests/test_proving.py::test_a_log_that_was_rewritten_is_not_anchored_anew[sqlite]",
    ),
    Mutation(
        "audit: any head of an anchor counts as given up",
        "proving.py",
        "not any((one.size, one.root) in given_up for one in anchored):\n                    raise\n"
        "                rest = [one for one in self._all_anchored() if (one.size, one.root) not in given_up]\n",
        "not anchored:\n                    raise\n                rest = []\n",
        "tests/test_proving.py::test_a_store_that_was_put_back_meets_its_anchor[sqlite-file]",
    ),
    Mutation(
        "records: an old call that is answered again has read what came since",
        "records.py",
        "if any(_is_same_call(one, call) for one in timeline.calls()):",
        "if False:",
        "tests/test_session_attacks.py::test_an_old_call_that_is_answered_once_more_has_read_nothing_that_came_after_it"
        "[sqlite-archive_evidence-as sent]",
    ),
    Mutation(
        "custody: a session is made under a version below the floor",
        "archive.py",
        "if custody is not None and new_scope.kek_version < custody.kek_floor:",
        "if custody is None:",
        "tests/test_rekeying.py::"
        "test_a_process_from_before_the_rotation_cannot_start_a_session_that_nobody_could_open[sqlite]",
    ),
    Mutation(
        "custody: a version is retired without a census",
        "rekeying.py",
        "if census.counts.get(version):",
        "if census.counts.get(0):",
        "tests/test_rekeying.py::test_a_version_that_anything_needs_is_not_destroyed[sqlite]",
    ),
    Mutation(
        "custody: a version is retired that another org needs",
        "rekeying.py",
        "for census in (self.census(), *others.values()):",
        "for census in (self.census(),):",
        "tests/test_rekeying.py::test_a_version_that_anything_needs_is_not_destroyed[sqlite]",
    ),
    Mutation(
        "custody: a version is destroyed before the log knows of it",
        "rekeying.py",
        '        self._append(audit.KEY_RETIRED, {"version": version})\n        keys.retire(org, version)\n',
        '        keys.retire(org, version)\n        self._append(audit.KEY_RETIRED, {"version": version})\n',
        "tests/test_killers.py::test_a_version_that_the_log_cannot_take_leave_of_is_not_destroyed",
    ),
    Mutation(
        "custody: a new version is not tested",
        "rekeying.py",
        "        self._test(reopened, version)\n",
        "",
        "tests/test_killers.py::test_a_version_that_is_not_where_it_was_kept_wraps_nothing",
    ),
    Mutation(
        "custody: a session's key is swapped whatever it became meanwhile",
        "rekeying.py",
        "[new for old, new in pairs if writer.scope(old.scope_id) == old]",
        "[new for old, new in pairs]",
        "tests/test_killers.py::test_a_key_that_changed_while_it_was_wrapped_again_is_left_as_it_is",
    ),
    Mutation(
        "custody: the org's key is swapped whatever it became meanwhile",
        "rekeying.py",
        "if writer.org_row() != old:",
        "if writer.org_row() is None:",
        "tests/test_killers.py::test_a_key_of_the_org_that_changed_meanwhile_is_left_as_it_is",
    ),
    Mutation(
        "custody: a batch is held against the quota before it is counted",
        "archiving.py",
        "            custody = self._records.vault.counted(writer, len(new), sum(row.size_bytes for row in new))\n"
        "            self._refuse_over_quota(custody)\n",
        "            self._refuse_over_quota(writer.custody() or CustodyRow(0, 0, 0))\n"
        "            self._records.vault.counted(writer, len(new), sum(row.size_bytes for row in new))\n",
        "tests/test_disposal.py::test_a_batch_over_the_quota_is_rejected_whole_and_nothing_is_evicted[sqlite]",
    ),
)

_PROOF = (
    Mutation(
        "proof: a node passes for a leaf",
        _MERKLE,
        'return sha256(b"\\x00" + leaf).digest()',
        "return sha256(leaf).digest()",
        "tests/test_proof.py::test_roots_are_those_of_certificate_transparency",
    ),
    Mutation(
        "proof: an empty path shows anything",
        _MERKLE,
        "    if last != 0 or found != root:\n",
        "    if path and (last != 0 or found != root):\n",
        "tests/test_checkpoint.py::test_every_leaf_of_every_log_is_proven_at_its_place_and_at_no_other",
    ),
    Mutation(
        "proof: an entry is shown at another place",
        _MERKLE,
        "    if last != 0 or found != root:\n",
        "    if found != root:\n",
        "tests/test_checkpoint.py::test_every_leaf_of_every_log_is_proven_at_its_place_and_at_no_other",
    ),
    Mutation(
        "proof: a path longer than the tree is high is followed",
        _MERKLE,
        "        if last == 0:\n            raise AuditBrokenError(_UNPROVEN)\n",
        "",
        "tests/test_killers.py::test_a_path_that_goes_on_above_the_root_is_refused",
    ),
    Mutation(
        "proof: a log begins with one it does not begin with",
        _MERKLE,
        "if last != 0 or old != old_root or new != root:",
        "if last != 0 or new != root:",
        "tests/test_checkpoint.py::test_every_log_is_shown_to_begin_with_every_shorter_one_and_with_no_other",
    ),
    Mutation(
        "proof: an entry may name another place than it has",
        _CHECKPOINT,
        "    if entry.seq != int(index):\n",
        "    if entry.seq < 0:\n",
        "tests/test_checkpoint.py::test_an_entry_that_names_another_place_is_refused_though_the_tree_holds_it",
    ),
    Mutation(
        "proof: a signature is not verified",
        _CHECKPOINT,
        "            public.verify(value[_KEY_ID_BYTES:], text.encode())\n",
        "            public.public_bytes_raw()\n",
        "tests/test_checkpoint.py::test_any_changed_character_of_a_checkpoint_is_refused",
    ),
    Mutation(
        "proof: a checkpoint of another log is accepted",
        _CHECKPOINT,
        "    if checkpoint.origin != key.name:\n",
        "    if not checkpoint.origin:\n",
        "tests/test_checkpoint.py::test_a_text_that_is_no_head_is_refused_though_the_key_signed_it",
    ),
    Mutation(
        "proof: a checkpoint may hold lines that nobody audits",
        _CHECKPOINT,
        "if len(lines) != 4 or root is None",
        "if len(lines) < 4 or root is None",
        "tests/test_checkpoint.py::test_a_text_that_is_no_head_is_refused_though_the_key_signed_it",
    ),
    Mutation(
        "proof: a signature may be written in several ways",
        _CHECKPOINT,
        "return data if _b64(data) == text else None",
        "return data",
        "tests/test_killers.py::test_a_signature_has_one_form_and_no_other",
    ),
    Mutation(
        "proof: a shorter log is signed",
        "vault.py",
        "            if last.size > head.size:\n",
        "            if last.size < 0:\n",
        "tests/test_killers.py::test_a_log_that_is_shorter_than_its_last_signed_head_is_not_signed",
    ),
    Mutation(
        "proof: heads are compared by their sizes alone",
        "proving.py",
        "if one.size == frontier.size and one.root != frontier.root():",
        "if one.size == frontier.size and not one.root:",
        "tests/test_proving.py::test_a_store_that_was_put_back_meets_its_anchor[sqlite-file]",
    ),
    Mutation(
        "proof: a longer log that an anchor knows is forgotten",
        "proving.py",
        "if any(one.size > head.size for one in known) or begun.size > head.size:",
        "if begun.size > head.size:",
        "tests/test_proving.py::test_a_store_that_was_put_back_meets_its_anchor[sqlite-file]",
    ),
    Mutation(
        "proof: a head is signed that its entries do not lead to",
        "logged.py",
        "    if tree.to_bytes() != head.frontier:\n",
        "    if not tree.to_bytes():\n",
        "tests/test_killers.py::test_a_head_that_its_entries_do_not_lead_to_is_not_signed",
    ),
    Mutation(
        "proof: a gap in the entries is stepped over",
        "vault.py",
        "            if seq != at:\n",
        "            if seq < at:\n",
        "tests/test_killers.py::test_a_log_with_a_gap_is_not_signed",
    ),
    Mutation(
        "proof: what was signed long ago is not held against the log",
        "proving.py",
        "        verify_consistency(known.size, known.root, size, _root(hashes), path)\n",
        "",
        "tests/test_proving.py::test_an_insider_who_rewrites_the_log_meets_what_was_signed_before[sqlite]",
    ),
    Mutation(
        "proof: an anchor's file is not durable",
        "anchors.py",
        "            os.fsync(file)\n",
        "",
        "tests/test_killers.py::test_an_anchor_file_is_synced_before_a_head_counts_as_kept",
    ),
)

_COPIES = (
    Mutation(
        "copies: a log without entries is verified",
        "verifying/findings.py",
        'return self.findings_count == 0 and self.counts.get("entries", 0) > 0',
        "return self.findings_count == 0",
        "tests/test_killers.py::test_a_run_that_looked_at_nothing_is_not_clean",
    ),
    Mutation(
        "copies: a copy is called a backup whatever was found in it",
        "backup.py",
        "    if not report.is_clean:\n        first = report",
        "    if report.findings_count < 0:\n        first = report",
        "tests/test_backup.py::test_a_copy_with_one_changed_byte_is_not_called_a_backup",
    ),
    Mutation(
        "copies: a backup is put back beside the log of another database",
        "backup.py",
        'for side in ("", *_SIDE_FILES)):\n        raise StoreError("There is a database',
        'for side in ("",)):\n        raise StoreError("There is a database',
        "tests/test_backup.py::test_a_target_that_holds_a_database_or_the_log_of_one_is_refused[-wal]",
    ),
    Mutation(
        "copies: a backup is not held against its manifest",
        "backup.py",
        "if found != told or (signed.size, signed.root.hex()) != (told.size, told.root):",
        "if found is None:",
        "tests/test_backup.py::test_a_manifest_that_was_edited_is_refused",
    ),
    Mutation(
        "copies: an act is done again to what got its id later",
        "register.py",
        "if known != act.data or not same:",
        "if known != act.data:",
        "tests/test_backup.py::test_an_act_is_not_done_to_what_got_the_same_id_in_another_history",
    ),
    Mutation(
        "copies: an original is exported without a grant",
        "evidence.py",
        "    for found in founds.values():\n        restoring.granted(principal, found, part=None, reason=None)\n",
        "",
        "tests/test_evidence.py::test_each_original_is_granted_as_a_restore_is_and_the_export_has_an_entry",
    ),
    Mutation(
        "copies: proofs of a bundle lead to any head",
        "evidence.py",
        "if proof.checkpoint != checkpoint or proof.leaf.seq != seq:",
        "if proof.leaf.seq != seq:",
        "tests/test_evidence.py::test_the_files_of_an_older_export_do_not_mix_with_those_of_a_newer_one[by_library]",
    ),
    Mutation(
        "copies: an envelope of a bundle need not be the one that was logged",
        "evidence.py",
        '    if sealed.hexdigest() != one["envelope_sha256"]:\n',
        "    if not sealed.digest_size:\n",
        "tests/test_evidence.py::test_another_content_sealed_anew_for_the_same_place_is_refused[r3-by_library]",
    ),
    Mutation(
        "copies: the content of a bundle need not be what was sealed",
        "evidence.py",
        'if size_bytes != one["size_bytes"] or not hmac.compare_digest(plain.digest(), opened.sha256):',
        'if size_bytes != one["size_bytes"]:',
        "tests/test_evidence.py::test_no_file_of_a_bundle_can_be_changed_cut_lengthened_renamed_or_taken_away[r3-by_library]",
    ),
    Mutation(
        "copies: an org that was taken off the list keeps no version",
        "archive.py",
        "if isinstance(store, Surveyable) and store.unlisted_orgs():",
        "if False:",
        "tests/test_rekeying.py::"
        "test_an_org_that_was_hidden_in_the_database_is_not_left_out_of_the_census[off the list]",
    ),
    Mutation(
        "copies: an org whose key was emptied passes for a shredded one",
        "archive.py",
        "                    check_unopened(store, org)\n",
        "                    pass\n",
        "tests/test_rekeying.py::"
        "test_an_org_that_was_hidden_in_the_database_is_not_left_out_of_the_census[as if shredded]",
    ),
    Mutation(
        "copies: a history that was given up meets nothing that came after it",
        "proving.py",
        "notes += [anchor.put_last(key.name) for anchor in self._anchors if isinstance(anchor, FileAnchor)]",
        "notes += []",
        "tests/test_proving.py::"
        "test_a_history_that_was_given_up_and_is_put_back_meets_the_one_that_came_after_it[sqlite-file]",
    ),
    Mutation(
        "copies: a hold that a copy of the store released is believed",
        "disposal.py",
        "        if not self._logged.has_holds(holds):\n",
        "        if False:\n",
        "tests/test_disposal.py::test_a_hold_is_not_exchanged_for_what_a_copy_of_the_store_made_of_it",
    ),
    Mutation(
        "copies: the collector believes a result that was put back",
        "envelopes.py",
        "            if digest is not None:\n",
        "            if False:\n",
        "tests/test_large_originals.py::"
        "test_an_older_intent_and_result_put_back_together_make_the_collector_delete_nothing[sqlite]",
    ),
    Mutation(
        "copies: a register goes on where it was, whatever was put back",
        "register.py",
        "if is_file and _leaf_at(reader, after - 1) == last:",
        "if is_file:",
        "tests/test_backup.py::test_a_process_that_goes_on_keeps_the_register_whole_when[a backup is put back]",
    ),
    Mutation(
        "copies: a register goes on where it was, whichever file is there",
        "register.py",
        "if is_file and _leaf_at(reader, after - 1) == last:",
        "if _leaf_at(reader, after - 1) == last:",
        "tests/test_backup.py::test_a_process_that_goes_on_keeps_the_register_whole_when[the register is moved away]",
    ),
    Mutation(
        "copies: a backup that was put back keeps its older key version",
        "backup.py",
        "            rekeying.rotate(new_version=False)\n",
        "            pass\n",
        "tests/test_backup.py::test_a_shred_after_putting_back_is_not_complete_while_a_copy_of_what_was_lost_opens",
    ),
    Mutation(
        "copies: what was shredded and put back is wrapped under the new version",
        "rekeying.py",
        "if name is None or self._logged.generation(name) != one.generation:",
        "if False:",
        "tests/test_rekeying.py::"
        "test_what_was_shredded_and_put_back_is_not_wrapped_under_a_new_version[sqlite-a session]",
    ),
    Mutation(
        "copies: what was shredded and put back is sealed anew with what stays",
        "disposal.py",
        "if self._logged.generation(session.session_id) != old_scope.generation:",
        "if False:",
        "tests/test_rekeying.py::test_what_was_shredded_and_put_back_is_not_sealed_anew_with_what_stays[sqlite]",
    ),
    Mutation(
        "proof: sizes that no log has are continued where the roots agree",
        "proof/merkle.py",
        "if not 0 <= old_size <= size <= SIZE_MAX or not _are_hashes((old_root, root, *path)):",
        "if not 0 <= old_size <= size <= SIZE_MAX and not _are_hashes((old_root, root, *path)):",
        "tests/test_proof.py::test_sizes_that_no_two_logs_have_are_refused_even_where_the_roots_agree",
    ),
    Mutation(
        "proof: an empty log has any root",
        "proof/merkle.py",
        " or (size == 0 and root != EMPTY_ROOT):",
        ":",
        "tests/test_proof.py::test_an_empty_log_has_one_root_and_every_log_begins_with_it",
    ),
)

_BOOKS = (
    *(
        Mutation(
            f"books: a posting is not bound to its {what}",
            "books.py",
            "ce(vault.deployment, vault.org, scope_id, book, seq)",
            f"ce(vault.deployment, vault.org, {rest})",
            "tests/test_books.py::test_a_posting_stands_only_in_its_own_place[sqlite]",
        )
        for what, rest in {"session": "book, seq", "book": "scope_id, seq", "number": "scope_id, book"}.items()
    ),
    Mutation(
        "books: postings that are gone are not counted",
        "books.py",
        "if reader.posted(session.scope_id, book) != (count, count):",
        "if False:",
        "tests/test_books.py::"
        "test_a_posting_that_was_removed_past_all_that_is_noticed_by_whoever_reads_or_posts[sqlite-3]",
    ),
    Mutation(
        "books: what is known is not looked at again",
        "books.py",
        "if last is not None and reader.postings(session.scope_id, book, last.seq - 1, 1) != [last]:",
        "if False:",
        "tests/test_books.py::test_a_store_that_was_put_back_and_written_since_is_read_anew[sqlite]",
    ),
    Mutation(
        "books: a decision looks at what was known before",
        "books.py",
        "            known = self._read_on(writer, row, book)\n            contents",
        "            known = self._known.setdefault(book, ([], None))[0]\n            contents",
        "tests/test_books.py::test_a_decision_sees_all_that_was_put_down_and_what_it_raises_changes_nothing[sqlite]",
    ),
    Mutation(
        "books: a posting is not in the log",
        "books.py",
        "            writer.append([records.leaf(audit.BOOK_POSTED, details=details)])\n",
        "",
        "tests/test_books.py::test_every_posting_is_in_the_log_by_its_digest_and_nothing_of_what_it_says[sqlite]",
    ),
    Mutation(
        "card: a call that is answered again changes more",
        "carding.py",
        "if call is not None and posting.content ==",
        "if call is None and posting.content ==",
        "tests/test_session_card.py::test_a_call_that_is_answered_once_more_changes_nothing_more[sqlite]",
    ),
    Mutation(
        "card: a decision refers to what was never issued",
        "carding.py",
        "if reference.number is not None and reference.number not in self._records.rows:",
        "if False:",
        "tests/test_session_card.py::"
        "test_what_cannot_be_changes_nothing_and_says_what_can[sqlite-changes4-no result r99]",
    ),
    Mutation(
        "card: an item jumps",
        "window/card.py",
        "    if to != following:\n",
        "    if following is None:\n",
        "tests/test_window_card.py::test_only_the_next_state_and_dropped_can_be_reached_and_a_refusal_says_what_can",
    ),
    Mutation(
        "card: the goal is written again",
        "window/card.py",
        "if goal is not None:",
        "if False:",
        "tests/test_window_card.py::test_what_cannot_be_done_changes_nothing_and_says_why",
    ),
    Mutation(
        "card: a decision without evidence",
        "window/card.py",
        'if kind == "decision" and (change["reason"] is None or not references):',
        'if kind == "decision" and change["reason"] is None:',
        "tests/test_window_card.py::test_what_cannot_be_done_changes_nothing_and_says_why",
    ),
    Mutation(
        "ledger: what a check does not say is a fact",
        "ledger/keeping.py",
        "        if not is_plain(outcome):\n",
        "        outcome = outcome or Outcome('', '')\n        if False:\n",
        "tests/test_ledger.py::test_what_no_check_passes_stays_a_claim[sqlite]",
    ),
    Mutation(
        "ledger: a claim of another ledger becomes a fact",
        "ledger/keeping.py",
        "if not isinstance(claim.id, str) or self._all().claims.get(claim.id) != claim:",
        "if False:",
        "tests/test_ledger.py::test_a_claim_of_another_session_is_no_claim_here[sqlite]",
    ),
    Mutation(
        "ledger: a fact that was superseded is superseded again",
        "ledger/keeping.py",
        "supersedes not in books.facts or not books.facts[supersedes].is_current",
        "supersedes not in books.facts",
        "tests/test_ledger.py::test_5_a_superseded_fact_is_still_there_and_can_be_rolled_back[sqlite]",
    ),
    Mutation(
        "ledger: key facts are not read again",
        "ledger/keeping.py",
        "why = self._disagrees(fact) if is_strong else",
        "why = None if is_strong else",
        "tests/test_ledger.py::test_4_an_original_that_was_changed_is_reported_by_the_next_reconcile[sqlite-0.3]",
    ),
    Mutation(
        "ledger: the books close over a key fact that does not agree",
        "ledger/keeping.py",
        "            if wrong:\n",
        "            if False:\n",
        "tests/test_ledger.py::test_4_an_original_that_was_changed_is_reported_by_the_next_reconcile[sqlite-0.3]",
    ),
    Mutation(
        "ledger: what does not agree enters the balance",
        "ledger/keeping.py",
        "for fact in books.current() if fact.id in agreeing]",
        "for fact in books.current()]",
        "tests/test_ledger.py::test_a_shredded_source_is_told_and_its_fact_does_not_enter_the_next_balance[sqlite]",
    ),
    Mutation(
        "ledger: what is kept for a fact loses its labels",
        "ledger/sources.py",
        'Kept("artifact", content, words, sensitivity, next(iter(tools)',
        'Kept("artifact", content, words, frozenset(), next(iter(tools)',
        "tests/attacks/test_rules_window.py::"
        "test_what_is_kept_for_a_fact_is_under_the_rules_of_what_it_is_made_from[sqlite]",
    ),
    Mutation(
        "ledger: who shares one has no more than who made it",
        "restoring.py",
        "owner = principal.subject if as_owner else session.subject",
        "owner = session.subject",
        "tests/test_ledger_shared.py::test_who_made_it_and_who_has_a_role_share_one_ledger_and_nobody_else[sqlite]",
    ),
    Mutation(
        "ledger: what only others may restore is a source",
        "ledger/sources.py",
        "if not records.vault.may_restore(records.principal, records.row.subject, *rows):",
        "if not rows:",
        "tests/test_ledger.py::test_what_a_session_could_not_restore_it_cannot_make_an_original_of[sqlite]",
    ),
    Mutation(
        "ledger: a written file is read through a link",
        "ledger/rules.py",
        "_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "_FILE = os.O_RDONLY | os.O_NONBLOCK",
        "tests/test_ledger_rules.py::test_a_file_that_is_not_what_was_written_or_not_in_the_folder_is_no_fact",
    ),
    Mutation(
        "ledger: a folder on the way to a written file is a link",
        "ledger/rules.py",
        "_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW",
        "_FOLDER = os.O_RDONLY | os.O_DIRECTORY",
        "tests/test_ledger_rules.py::test_a_file_that_is_not_what_was_written_or_not_in_the_folder_is_no_fact",
    ),
    Mutation(
        "search: whoever asks finds all",
        "searching.py",
        "return self._records.vault.may_restore(",
        "return True or self._records.vault.may_restore(",
        "tests/test_session_search.py::test_what_may_not_be_restored_is_not_found[sqlite]",
    ),
    Mutation(
        "search: it is not in the log",
        "searching.py",
        "            writer.append([leaf])\n",
        "",
        "tests/test_session_search.py::test_a_model_gets_lines_it_can_ask_for_and_the_search_is_in_the_log[sqlite]",
    ),
    Mutation(
        "search: lines stand in an answer as they are",
        "notes.py",
        "{_in_line(excerpt, 400, _UNFIT_IN_SENTENCE)}",
        "{excerpt}",
        "tests/test_session_search.py::test_words_of_a_hit_cannot_pass_for_ours",
    ),
    Mutation(
        "window: protected evidence leaves with its turn",
        "windowing.py",
        "target_tokens=target, staying=self._staying())",
        "target_tokens=target, staying=())",
        "tests/test_session_window.py::test_what_a_policy_protects_stays_in_view_however_old_it_is_with_its_call",
    ),
    Mutation(
        "window: turns leave and are archived nowhere",
        "leaving.py",
        "in spans if have_gone else ():",
        "in () if have_gone else spans:",
        "tests/attacks/test_rules_window.py::test_what_left_a_window_is_under_the_rules_of_every_result_in_it[sqlite]",
    ),
    Mutation(
        "window: a span holds what its results said",
        "leaving.py",
        'if records.rows[place.number].state != "live":\n                words',
        'if records.rows[place.number].state == "live":\n                words',
        "tests/test_session_carried.py::"
        "test_a_result_that_left_with_its_turn_is_an_original_and_goes_when_that_is_shredded[sqlite]",
    ),
    Mutation(
        "window: what a search found outlives the original in a span",
        "leaving.py",
        "elif place.call is not None and place.call.name == SEARCH_TOOL:",
        "elif place.call is None:",
        "tests/test_session_carried.py::"
        "test_a_result_that_left_with_its_turn_is_an_original_and_goes_when_that_is_shredded[sqlite]",
    ),
    Mutation(
        "window: a fact that no longer agrees is told as established",
        "ledger/entries.py",
        "if fact.id not in self.disagreeing)",
        "if fact.id)",
        "tests/test_session_carried.py::"
        "test_a_fact_that_did_not_agree_with_its_source_is_told_as_established_no_more",
    ),
    Mutation(
        "window: a span loses the labels of what is in it",
        "leaving.py",
        'Kept("span", "\\n".join(lines), words, sensitivity)',
        'Kept("span", "\\n".join(lines), words)',
        "tests/attacks/test_rules_window.py::test_what_left_a_window_is_under_the_rules_of_every_result_in_it[sqlite]",
    ),
    Mutation(
        "window: what is carried is not cleaned",
        "window/carrying.py",
        "for line in clean(entry).split",
        "for line in entry.split",
        "tests/test_window_carrying.py::test_words_of_others_cannot_pass_for_ours",
    ),
    Mutation(
        "window: what is carried is not quoted",
        "window/carrying.py",
        'f"> {line}" for line in clean',
        'f"{line}" for line in clean',
        "tests/test_window_carrying.py::test_words_of_others_cannot_pass_for_ours",
    ),
    Mutation(
        "window: what changed is not cleaned",
        "window/changing.py",
        "> {clean(one_line(line))}",
        "> {one_line(line)}",
        "tests/attacks/test_injection_window.py::"
        "test_no_text_is_taken_for_ours_on_cards_in_facts_summaries_and_searches_and_all_comes_back"
        "[a hidden character]",
    ),
    Mutation(
        "window: a summary is larger than its span",
        "window/summaries.py",
        "if tokens >= span.tokens or tokens > tokens_max:",
        "if tokens > tokens_max:",
        "tests/test_window_summaries.py::test_a_summary_that_is_not_smaller_is_refused",
    ),
    Mutation(
        "window: open points wear away",
        "window/summaries.py",
        "return replace(summary, carried=carried), refusals",
        "return summary, refusals",
        "tests/test_window_summaries.py::test_fifty_compressions_lose_no_open_point_and_no_confirmed_decision",
    ),
    Mutation(
        "window: a summariser that raises ends the view",
        "window/summaries.py",
        "        except Exception as error:  # of a client",
        "        except ZeroDivisionError as error:  # of a client",
        "tests/test_window_summaries.py::test_a_summariser_that_raises_is_asked_once_more_and_then_replaced",
    ),
    Mutation(
        "references: one place is written in two ways",
        "references.py",
        "if str(found) != text:",
        "if False:",
        "tests/test_references.py::test_what_is_no_reference_is_refused_in_one_sentence",
    ),
    Mutation(
        "references: a name hides characters",
        "references.py",
        " or not name.isprintable():",
        ":",
        "tests/test_references.py::test_what_is_no_reference_is_refused_in_one_sentence",
    ),
)

MUTATIONS = (
    *_SEALING,
    *_ROWS,
    *_AUDIT,
    *_STORE,
    *_ACCESS,
    *_ERRORS,
    *_POLICY,
    *_KEYS,
    *_CUSTODY,
    *_PROOF,
    *_COPIES,
    *_BOOKS,
)
