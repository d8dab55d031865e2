//! The forms of quotas, in stored records and in commands that are sent.

use super::codec::{DecodeError, Reader, Writer};
use super::command::{AlterClientQuotas, MutationQuota, QuotaChange, QuotaResults, QuotaTarget, Refusal};
use super::quotas::{QuotaEntity, QuotaKey, QuotaLimit, QuotaName};

impl Writer<'_> {
    pub(super) fn quota_entity(&mut self, entity: &QuotaEntity) {
        for part in [&entity.user, &entity.client_id, &entity.ip] {
            self.option(part, |writer, name| match name {
                QuotaName::Default => writer.bool(false),
                QuotaName::Of(name) => {
                    writer.bool(true);
                    writer.text(name);
                }
            });
        }
    }

    pub(super) fn quota_limit(&mut self, limit: &QuotaLimit) {
        self.unsigned(limit.get().to_bits());
    }

    pub(super) fn alter_client_quotas(&mut self, request: &AlterClientQuotas) {
        self.list(&request.changes, |writer, change| {
            writer.quota_target(&change.target);
            writer.list(&change.ops, |writer, (key, limit)| {
                writer.text(key);
                writer.option(limit, Self::quota_limit);
            });
        });
        self.bool(request.validate_only);
    }

    pub(super) fn mutation_quota(&mut self, quota: &MutationQuota) {
        self.text(&quota.user);
        self.text(&quota.client_id);
        self.bool(quota.is_strict);
    }

    pub(super) fn quotas_altered(&mut self, results: &[(QuotaTarget, Result<(), Refusal>)]) {
        self.list(results, |writer, (target, result)| {
            writer.quota_target(target);
            writer.result(result, |_, ()| {});
        });
    }

    fn quota_target(&mut self, target: &QuotaTarget) {
        self.unsigned(target.len() as u64);
        for (kind, name) in target {
            self.text(kind);
            self.option(name, |writer, name| writer.text(name));
        }
    }
}

impl Reader<'_> {
    pub(super) fn quota_entity(&mut self) -> Result<QuotaEntity, DecodeError> {
        Ok(QuotaEntity { user: self.quota_name()?, client_id: self.quota_name()?, ip: self.quota_name()? })
    }

    fn quota_name(&mut self) -> Result<Option<QuotaName>, DecodeError> {
        self.option(|reader| {
            Ok(match reader.bool()? {
                false => QuotaName::Default,
                true => QuotaName::Of(reader.text()?.to_owned()),
            })
        })
    }

    pub(super) fn quota_key(&mut self) -> Result<QuotaKey, DecodeError> {
        let number = usize::from(self.u8()?);
        QuotaKey::ALL.get(number).copied().ok_or(DecodeError::Value("quota key"))
    }

    pub(super) fn quota_limit(&mut self) -> Result<QuotaLimit, DecodeError> {
        Ok(QuotaLimit::new(f64::from_bits(self.unsigned()?)))
    }

    pub(super) fn alter_client_quotas(&mut self) -> Result<AlterClientQuotas, DecodeError> {
        let changes = self.list(2, |reader| {
            let target = reader.quota_target()?;
            let ops = reader
                .list(2, |reader| Ok((reader.text()?.to_owned(), reader.option(Reader::quota_limit)?)))?;
            Ok(QuotaChange { target, ops })
        })?;
        Ok(AlterClientQuotas { changes, validate_only: self.bool()? })
    }

    pub(super) fn mutation_quota(&mut self) -> Result<MutationQuota, DecodeError> {
        Ok(MutationQuota {
            user: self.text()?.to_owned(),
            client_id: self.text()?.to_owned(),
            is_strict: self.bool()?,
        })
    }

    pub(super) fn quotas_altered(&mut self) -> Result<QuotaResults, DecodeError> {
        self.list(2, |reader| Ok((reader.quota_target()?, reader.result(|_| Ok(()))?)))
    }

    fn quota_target(&mut self) -> Result<QuotaTarget, DecodeError> {
        let parts = self.list(2, |reader| {
            let kind = reader.text()?.to_owned();
            Ok((kind, reader.option(|reader| Ok(reader.text()?.to_owned()))?))
        })?;
        Ok(parts.into_iter().collect())
    }
}
